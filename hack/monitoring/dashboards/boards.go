// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// boards are the dashboards. The labels namespace, cache and pod of servers are those that manifests/components/monitoring/monitors.yaml
// gives them; a server's label job is exported_job, since Prometheus has a label job of its own.
var boards = []board{cacheBoard, fleetBoard, objectCacheBoard, scratchBoard}

// rates is the sum of the increase a second of the counters that the selector chooses, by labels; "": of all.
func rates(by, counter, selector string) string {
	sum := "sum"
	if by != "" {
		sum = "sum by (" + by + ") "
	}
	return sum + "(rate(" + counter + selector + "[$__rate_interval]))"
}

// within is the value that 95 % of a histogram's observations in some time did not exceed, by a label.
func within(buckets, label, time string) string {
	return "histogram_quantile(0.95, sum by (le, " + label + ") (increase(" + buckets + "[" + time + "])))"
}

// share is a / (a + b).
func share(a, b string) string { return a + " / (" + a + " + " + b + ")" }
