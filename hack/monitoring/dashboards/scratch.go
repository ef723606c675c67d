// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

const volumes = "datacache_claim" // start of the names of metrics

var scratchBoard = board{
	name: "scratch-volumes", title: "Datacache: scratch volumes",
	description: "Which pods wait for their volumes, how fast claims are made, and why they fail.",
	rows:        []row{{"Claims", scratchClaims}},
}

var scratchClaims = []panel{
	{"Pods that wait", "How many pods wait for their claims?", number, "short", []query{
		{"sum(" + volumes + "_queue_length)", "pods"},
	}},
	{"Claims made", "How fast are claims made?", graph, "ops", []query{
		{rates("", volumes+"s_created_total", ""), "claims"},
	}},
	{"Time until scheduled", "In which time were the gates of 95 % of the pods opened?", graph, "s", []query{
		{"histogram_quantile(0.95, sum by (le) (increase(" + volumes + "_wait_seconds_bucket[$__range])))", "95 %"},
	}},
	{"Failed claims", "Why do pods still wait after an attempt?", graph, "ops", []query{
		{rates("reason", volumes+"s_failed_total", ""), "{{reason}}"},
	}},
	{"Claims left at once", "How many claims may be made at once now? 0 means that --claim-qps holds them up.", graph, "short", []query{
		{"max(" + volumes + "_tokens)", "claims"},
	}},
}
