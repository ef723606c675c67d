// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buildinfo exports the version of a program as a metric.
package buildinfo

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns the metric datacache_build_info, which is always 1. Its labels are the component (the program, or the part of it
// that runs), its version, and the version of Go that compiled it.
func Collector(component, version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "datacache_build_info", Help: "1, with the component, its version and the version of Go that compiled it.",
		ConstLabels: prometheus.Labels{"component": component, "version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}
