// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package export sends a process's spans to an OpenTelemetry collector, if the environment names one.
package export

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kubeflow/datacache/internal/tracing"
)

// The variables that decide whether and how spans are sent. OpenTelemetry's SDK reads the others by itself: headers, certificates,
// timeouts, sampler, resource, limits (opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables and
// .../protocol/exporter).
const (
	envDisabled       = "OTEL_SDK_DISABLED"
	envExporter       = "OTEL_TRACES_EXPORTER"
	envEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	envTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	envProtocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	envTracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
)

const (
	protocolHTTP = "http/protobuf"
	protocolGRPC = "grpc"
)

// flushTime is how long a process that ends waits for the collector.
const flushTime = 2 * time.Second

// Config describes the process. Redact may be nil, the other fields are required.
type Config struct {
	Env     func(name string) string // returns a variable of the process, "" if it is not set
	Service string                   // service.name, unless the environment says another
	Version string                   // service.version; "": unknown
	Redact  func(string) string      // removes credentials from the texts of spans; nil: they contain none
	Log     *slog.Logger             // for errors of sending, which are logged rarely
}

// Start returns the tracer of the process, or nil if the environment names no collector or turns traces off. An error names the
// variable that is invalid; whether the collector can be reached is not checked.
//
// Sending never blocks whoever ends a span: spans that don't fit in the queue are lost. Before the process ends, flush sends those that
// are left, which takes at most flushTime; it is never nil.
func Start(ctx context.Context, cfg Config) (tracer trace.Tracer, flush func(), err error) {
	off := func() {}
	if on, err := enabled(cfg.Env); err != nil || !on {
		return nil, off, err
	}
	client, err := newClient(cfg.Env)
	if err != nil {
		return nil, off, err
	}
	self := []attribute.KeyValue{attribute.String("service.name", cfg.Service)}
	if cfg.Version != "" {
		self = append(self, attribute.String("service.version", cfg.Version))
	}
	from, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(self...), resource.WithFromEnv())
	if err != nil {
		return nil, off, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME: %w, want NAME=VALUE and commas between them", err)
	}
	trouble := &trouble{log: cfg.Log}
	otel.SetErrorHandler(trouble)
	otlp, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, off, fmt.Errorf("set up the export of traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(from), sdktrace.WithBatcher(&exporter{otlp, cfg.Redact, trouble}))
	flush = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			trouble.Handle(err)
		}
	}
	return provider.Tracer(tracing.Scope), flush, nil
}

// enabled reports whether the environment names a collector of traces.
func enabled(env func(string) string) (bool, error) {
	name := envTracesEndpoint
	if env(name) == "" {
		name = envEndpoint
	}
	endpoint := env(name)
	if endpoint == "" || strings.EqualFold(env(envDisabled), "true") {
		return false, nil
	}
	switch exporter := env(envExporter); exporter {
	case "", "otlp":
	case "none":
		return false, nil
	default:
		return false, fmt.Errorf("%s: %q, want otlp or none", envExporter, exporter)
	}
	// The exporters would send to localhost instead.
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		_, shown, found := strings.Cut(endpoint, "@") // without a password
		if !found {
			shown = endpoint
		}
		return false, fmt.Errorf("%s: %q, want a URL such as http://collector:4318", name, shown)
	}
	return true, nil
}

func newClient(env func(string) string) (otlptrace.Client, error) {
	name := envTracesProtocol
	if env(name) == "" {
		name = envProtocol
	}
	switch protocol := cmp.Or(env(name), protocolHTTP); protocol {
	case protocolHTTP:
		return otlptracehttp.NewClient(), nil
	case protocolGRPC:
		return otlptracegrpc.NewClient(), nil
	default:
		return nil, fmt.Errorf("%s: %q, want %s or %s", name, protocol, protocolHTTP, protocolGRPC)
	}
}
