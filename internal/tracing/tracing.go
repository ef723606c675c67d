// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tracing starts and ends OpenTelemetry spans where the process exports them, and does nothing elsewhere.
//
// It depends on OpenTelemetry's API alone. Package export makes the tracer, which commands hand down; a nil tracer means that no spans
// are made.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Scope is the name of the instrumentation scope of all spans.
const Scope = "github.com/kubeflow/datacache"

// Header is the name of the header, or of the gRPC metadata, with which a caller passes on its span (W3C Trace Context).
const Header = "traceparent"

// Start starts a span of a tracer, below the span of ctx if it has one. The caller ends it. If the tracer is nil, Start returns ctx and
// a span that records nothing.
func Start(ctx context.Context, tracer trace.Tracer, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	if tracer == nil {
		return ctx, noop.Span{}
	}
	return tracer.Start(ctx, name, options...)
}

// Child starts a span below the span of ctx, with the same tracer. The caller ends it. If ctx has no span that is recorded, Child
// returns ctx and a span that records nothing.
func Child(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, noop.Span{}
	}
	return parent.TracerProvider().Tracer(Scope).Start(ctx, name, options...)
}

// End ends a span. An error becomes its status.
func End(span trace.Span, err error, options ...trace.SpanEndOption) {
	if err != nil && span.IsRecording() {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(options...)
}

// Parent returns the value of Header for the span of ctx, "" if it has none.
func Parent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[Header]
}

// WithParent returns a context whose spans are below the one that a value of Header names. It returns ctx if the value is invalid.
func WithParent(ctx context.Context, value string) context.Context {
	if value == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Header: value})
}
