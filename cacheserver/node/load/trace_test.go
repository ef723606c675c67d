// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/internal/tracing"
)

// TestTracesOffCostNothing checks that splits allocate nothing for traces that nobody collects.
func TestTracesOffCostNothing(t *testing.T) {
	l := &load{Config: &Config{}, splits: make([]source.Split, 1)}
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() { l.traceSplit(t.Context(), job{}, now, time.Second, rows.Sealed{}) }); n > 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestSpansOfSplitsAreBounded checks that a load of very many splits has few spans.
func TestSpansOfSplitsAreBounded(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer(tracing.Scope)
	for _, c := range []struct{ splits, want int }{{1, 1}, {mostSplitSpans, mostSplitSpans}, {mostSplitSpans + 1, 65}, {100_000, 128}} {
		recorder.Reset()
		l := &load{Config: &Config{}, splits: make([]source.Split, c.splits)}
		ctx, _ := tracing.Start(t.Context(), tracer, "load part")
		for i := range l.splits {
			l.splits[i] = source.Split{File: "s3://lake/a"}
			l.traceSplit(ctx, job{index: i}, time.Now(), 0, rows.Sealed{})
		}
		if got := len(recorder.Ended()); got != 4*c.want {
			t.Errorf("%d splits: %d spans, want 4 for each of %d", c.splits, got, c.want)
		}
	}
}
