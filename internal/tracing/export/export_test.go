// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/kubeflow/datacache/internal/tracing"
	"github.com/kubeflow/datacache/test/kit/otlptest"
)

func config(env map[string]string, log *bytes.Buffer) Config {
	return Config{
		Env: func(name string) string { return env[name] }, Service: "datacache-test", Log: slog.New(slog.NewTextHandler(log, nil)),
		Redact: func(text string) string { return strings.ReplaceAll(text, "sesame", "***") },
	}
}

// TestOff checks that nothing is started unless the environment names a collector.
func TestOff(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, env := range []map[string]string{
		{}, {"OTEL_TRACES_EXPORTER": "otlp"}, {envEndpoint: "http://collector:4318", envDisabled: "TRUE"}, {envEndpoint: "http://collector:4318", envExporter: "none"},
	} {
		tracer, flush, err := Start(t.Context(), config(env, &bytes.Buffer{}))
		if tracer != nil || err != nil {
			t.Errorf("%v: tracer %v, error %v, want neither", env, tracer, err)
		}
		flush()
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}

func TestInvalidVariables(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{envEndpoint, "collector:4318", `OTEL_EXPORTER_OTLP_ENDPOINT: "collector:4318", want a URL such as http://collector:4318`},
		{envEndpoint, "ftp://me:sesame@collector", `OTEL_EXPORTER_OTLP_ENDPOINT: "collector", want a URL`},
		{envTracesEndpoint, "http://", `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "http://", want a URL`},
		{envProtocol, "http/json", `OTEL_EXPORTER_OTLP_PROTOCOL: "http/json", want http/protobuf or grpc`},
		{envTracesProtocol, "thrift", `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: "thrift", want http/protobuf or grpc`},
		{envExporter, "zipkin", `OTEL_TRACES_EXPORTER: "zipkin", want otlp or none`},
	} {
		env := map[string]string{envEndpoint: "http://collector:4318", tt.name: tt.value}
		if _, _, err := Start(t.Context(), config(env, &bytes.Buffer{})); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s=%s: error %v, want %s", tt.name, tt.value, err, tt.want)
		}
	}
}

// TestCredentialsAreRedacted checks the texts of a span as the collector gets them.
func TestCredentialsAreRedacted(t *testing.T) {
	collector := otlptest.Start(t)
	t.Setenv(envEndpoint, collector.URL) // the SDK reads the environment itself
	tracer, flush, err := Start(t.Context(), config(map[string]string{envEndpoint: collector.URL}, &bytes.Buffer{}))
	if err != nil {
		t.Fatal(err)
	}
	_, span := tracer.Start(t.Context(), "split", trace.WithAttributes(attribute.String("datacache.file", "s3://lake/a?token=sesame"), attribute.Int("datacache.rows", 3)))
	tracing.End(span, errors.New("403 for sesame"))
	flush()
	got := collector.Spans()
	if len(got) != 1 || got[0].Error != "403 for ***" || got[0].Attributes["datacache.file"] != "s3://lake/a?token=***" || got[0].Attributes["datacache.rows"] != int64(3) {
		t.Errorf("the collector got %+v", got)
	}
	if got[0].Resource["service.name"] != "datacache-test" {
		t.Errorf("resource: %v", got[0].Resource)
	}
}

func TestErrorsAreLoggedRarely(t *testing.T) {
	var log bytes.Buffer
	trouble := &trouble{log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 10 {
		trouble.Handle(errors.New("connection refused"))
	}
	if n := strings.Count(log.String(), "connection refused"); n != 1 {
		t.Errorf("the error is logged %d times:\n%s", n, &log)
	}
	trouble.told = trouble.told.Add(-logEvery)
	trouble.Handle(errors.New("connection refused"))
	if !strings.Contains(log.String(), "errors=10") {
		t.Errorf("the second line does not say that there were 10 errors:\n%s", &log)
	}
}
