// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"errors"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TestOffCostsNothing checks that nothing is allocated where no spans are made.
func TestOffCostsNothing(t *testing.T) {
	ctx, failed := t.Context(), errors.New("it failed")
	for name, call := range map[string]func(){
		"a root":         func() { _, span := Start(ctx, nil, "load"); End(span, failed) },
		"a child":        func() { _, span := Child(ctx, "plan"); End(span, failed) },
		"without parent": func() { _ = WithParent(ctx, "") },
	} {
		if n := testing.AllocsPerRun(100, call); n > 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func TestParentsCrossProcesses(t *testing.T) {
	tracer := sdktrace.NewTracerProvider().Tracer(Scope)
	ctx, load := Start(t.Context(), tracer, "load")
	there := WithParent(t.Context(), Parent(ctx))
	_, part := Start(there, tracer, "load part")
	if got, want := part.SpanContext().TraceID(), load.SpanContext().TraceID(); got != want || !trace.SpanContextFromContext(there).IsRemote() {
		t.Errorf("the part is in trace %s, the load in %s", got, want)
	}
	_, child := Child(ctx, "plan")
	if child.SpanContext().TraceID() != load.SpanContext().TraceID() || !child.IsRecording() {
		t.Error("the child is in another trace, or not recorded")
	}
	for _, bad := range []string{"", "00", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", Parent(t.Context())} {
		if trace.SpanContextFromContext(WithParent(t.Context(), bad)).IsValid() {
			t.Errorf("%q names a parent", bad)
		}
	}
}
