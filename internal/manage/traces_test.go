// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"maps"
	"strings"
	"testing"
)

// TestTracesEnv checks that the pods of caches get the manager's collector, and no credentials.
func TestTracesEnv(t *testing.T) {
	t.Parallel()
	set := map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_SAMPLER_ARG": "0.1",
		"OTEL_EXPORTER_OTLP_HEADERS": "api-key=sesame", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=sesame", "OTEL_SERVICE_NAME": "manager",
		"OTEL_EXPORTER_OTLP_CERTIFICATE": "/etc/ca.pem", "OTEL_RESOURCE_ATTRIBUTES": "team=a", "AWS_SECRET_ACCESS_KEY": "sesame",
	}
	env := func(name string) string { return set[name] }
	got, err := tracesEnv(env)
	want := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_SAMPLER_ARG": "0.1"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v (error %v), want %v", got, err, want)
	}
	set["OTEL_EXPORTER_OTLP_ENDPOINT"] = "https://me:sesame@collector:4318"
	if _, err := tracesEnv(env); err == nil || !strings.HasPrefix(err.Error(), "OTEL_EXPORTER_OTLP_ENDPOINT: ") || strings.Contains(err.Error(), "sesame") {
		t.Errorf("a password in the URL: %v, want an error that names the variable and hides the password", err)
	}
	delete(set, "OTEL_EXPORTER_OTLP_ENDPOINT")
	if got, err := tracesEnv(env); len(got) > 0 || err != nil {
		t.Errorf("without a collector: %v (error %v), want none", got, err)
	}
}
