// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/internal/tracing"
)

// mostSplitSpans bounds how many splits of a load have spans: of more splits, every second, third and so on has.
const mostSplitSpans = 128

// startPart starts the span of loading an assignment, below the head's.
func (n *Node) startPart(ctx context.Context, spec peer.Assign) (context.Context, trace.Span) {
	if n.cfg.Tracer == nil {
		return tracing.Start(ctx, nil, "")
	}
	return tracing.Start(tracing.WithParent(ctx, spec.Trace), n.cfg.Tracer, "load part", trace.WithAttributes(
		attribute.Int("datacache.node", n.cfg.Index), attribute.Int("datacache.splits", len(spec.Splits))))
}

// traceSplit makes the spans of a split that has been decoded and copied since begin. Batches are decoded and copied in turns; the spans
// show the total times, one after the other.
func (l *load) traceSplit(ctx context.Context, j job, begin time.Time, copying time.Duration, sealed rows.Sealed) {
	every := (len(l.splits) + mostSplitSpans - 1) / mostSplitSpans
	if !trace.SpanFromContext(ctx).IsRecording() || j.index%every != 0 {
		return
	}
	end, info := time.Now(), l.splits[j.index].Info()
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

// sent counts what one stream sent and waited for. Only the goroutine of its call uses it.
type sent struct {
	rows, bytes        int64
	client, node, turn time.Duration // blocked on the client, working on messages, and of the latter waiting for turns
}

// trace makes the span of a stream that ends, below the client's if it passed one on.
func (s *sender) trace(err error) {
	tracer := s.node.cfg.Tracer
	if tracer == nil {
		return
	}
	ctx := s.stream.Context()
	if values := metadata.ValueFromIncomingContext(ctx, tracing.Header); len(values) == 1 {
		ctx = tracing.WithParent(ctx, values[0])
	}
	_, span := tracer.Start(ctx, "stream", trace.WithTimestamp(s.opened), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("datacache.kind", string(s.key.kind)), attribute.String("datacache.job", s.key.job), attribute.String("client.address", s.key.client),
		attribute.Int("datacache.rank", s.key.rank), attribute.Int("datacache.world", s.key.world), attribute.Int("datacache.node", s.node.cfg.Index),
		attribute.Int64("datacache.rows", s.sent.rows), attribute.Int64("datacache.bytes", s.sent.bytes),
		attribute.Float64("datacache.wait_client_seconds", s.sent.client.Seconds()), attribute.Float64("datacache.wait_node_seconds", s.sent.node.Seconds()),
		attribute.Float64("datacache.wait_turn_seconds", s.sent.turn.Seconds())))
	tracing.End(span, err)
}
