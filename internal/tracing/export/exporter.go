// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// exporter redacts spans before they are sent, and logs errors of sending.
type exporter struct {
	sdktrace.SpanExporter
	redact  func(string) string // nil: nothing is redacted
	trouble *trouble
}

// ExportSpans implements sdktrace.SpanExporter. It returns no errors, since the SDK would log each of them.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if e.redact != nil {
		spans = slices.Clone(spans)
		for i, span := range spans {
			spans[i] = redacted{span, e.redact}
		}
	}
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.trouble.Handle(err)
	}
	return nil
}

// redacted is a span without credentials in its status and attributes.
type redacted struct {
	sdktrace.ReadOnlySpan
	redact func(string) string
}

// Status returns the span's status.
func (s redacted) Status() sdktrace.Status {
	status := s.ReadOnlySpan.Status()
	status.Description = s.redact(status.Description)
	return status
}

// Attributes returns the span's attributes.
func (s redacted) Attributes() []attribute.KeyValue {
	attributes := slices.Clone(s.ReadOnlySpan.Attributes())
	for i, a := range attributes {
		if a.Value.Type() == attribute.STRING {
			attributes[i].Value = attribute.StringValue(s.redact(a.Value.AsString()))
		}
	}
	return attributes
}

// logEvery is the minimum time between two errors of sending in the log.
const logEvery = 5 * time.Minute

// trouble logs errors of sending spans: the first one at once, later ones at most every logEvery. It is safe for concurrent use.
type trouble struct {
	log *slog.Logger

	mu     sync.Mutex
	told   time.Time // when the last error was logged
	errors int       // since then
}

// Handle implements otel.ErrorHandler.
func (t *trouble) Handle(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errors++
	if now := time.Now(); now.Sub(t.told) >= logEvery {
		t.log.Warn("traces are lost: they can't be sent", "reason", err, "errors", t.errors)
		t.told, t.errors = now, 0
	}
}
