// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"fmt"
	"net/url"
)

// passedOn are the manager's variables that heads and data nodes get too. Those that hold credentials (OTEL_EXPORTER_OTLP_HEADERS), name
// files of the manager's pod or describe the manager itself are not among them.
var passedOn = []string{
	"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
	"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
	"OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
	"OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
	"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG",
}

// tracesEnv returns the variables for controller.Options.TracesEnv, none if the manager's environment names no collector.
func tracesEnv(env func(string) string) (map[string]string, error) {
	if env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil, nil
	}
	found := map[string]string{}
	for _, name := range passedOn {
		value := env(name)
		if value == "" {
			continue
		}
		if u, err := url.Parse(value); err == nil && u.User != nil {
			return nil, fmt.Errorf("%s: names a user or a password, which everyone who may read the pods of caches would see: put it into OTEL_EXPORTER_OTLP_HEADERS (docs/watch.md)", name)
		}
		found[name] = value
	}
	return found, nil
}
