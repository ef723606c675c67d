// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/internal/tracing"
)

// mostSplitSpans bounds how many splits of a load have spans: of more splits, every second, third and so on has.
const mostSplitSpans = 128

// traceSplit makes the spans of a split that has been decoded and copied since begin. Batches are decoded and copied in turns; the spans
// show the total times, one after the other.
func (l *load) traceSplit(ctx context.Context, j job, begin time.Time, copying time.Duration, sealed rows.Sealed) {
	every := (len(l.splits) + mostSplitSpans - 1) / mostSplitSpans
	if !trace.SpanFromContext(ctx).IsRecording() || j.index%every != 0 {
		return
	}
	end, info := time.Now(), l.splits[j.index]
	ctx, span := tracing.Child(ctx, "split", trace.WithTimestamp(j.begin), trace.WithAttributes(
		attribute.String("datacache.file", info.File), attribute.Int("datacache.row_group", info.RowGroup), attribute.Int64("datacache.first_row", info.First),
		attribute.Int64("datacache.rows", sealed.Rows), attribute.Int64("datacache.bytes", sealed.Bytes)))
	stage := func(name string, from, to time.Time) {
		_, span := tracing.Child(ctx, name, trace.WithTimestamp(from))
		span.End(trace.WithTimestamp(to))
	}
	stage("fetch", j.begin, j.end)
	stage("decode", begin, end.Add(-copying))
	stage("copy", end.Add(-copying), end)
	span.End(trace.WithTimestamp(end))
}
