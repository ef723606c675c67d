// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

const (
	chosen = `{namespace=~"$namespace"}`    // the caches of the chosen namespaces
	ours   = `{controller=~"datacache.*"}`  // the manager's controllers
	hooks  = `{webhook=~"/.*-trainjob"}`    // its webhooks
	queues = `{name=~"datacache.*"}`        // its queues
	used   = `datacache_memory_used_bytes`  // of a pod
	limit  = `datacache_memory_limit_bytes` // of a pod
)

// The managers are several, and during a change of leader two may export a DataCache: hence max.
var fleetBoard = board{
	name: "fleet", title: "Datacache: all caches",
	description: "All DataCaches by state, size and use, and the manager.",
	variables:   []variable{{name: "namespace", label: "namespace", series: "datacache_cache_info", many: true}},
	rows:        []row{{"Caches", fleetCaches}, {"Readers", fleetReaders}, {"Manager", fleetManager}},
}

var fleetCaches = []panel{
	{"All caches", "Which caches are there, and which are not Ready?", list, "", []query{
		{"max by (namespace, name, state) (datacache_cache_info" + chosen + ")", ""},
		{"max by (namespace, name) (datacache_cache_loaded_ratio" + chosen + ")", "Loaded"},
		{"max by (namespace, name) (datacache_cache_bytes" + chosen + ")", "In memory"},
	}},
	{"States", "How many caches are in which state?", stack, "short", []query{
		{"count by (state) (max by (namespace, name, state) (datacache_cache_info" + chosen + "))", "{{state}}"},
	}},
	{"Cached", "How many bytes has each namespace in memory, of one copy of each cache?", stack, "bytes", []query{
		{"sum by (namespace) (max by (namespace, name) (datacache_cache_bytes" + chosen + "))", "{{namespace}}"},
	}},
	{"Time until Ready", "In which time were 95 % of the caches of all namespaces Ready, by engine?", number, "s", []query{
		{within("datacache_load_seconds_bucket", "engine", "$__range"), "{{engine}}"},
	}},
	{"Time until it loads", "How much of that went by before the head answered: for scheduling and images?", number, "s", []query{
		{within("datacache_provision_seconds_bucket", "engine", "$__range"), "{{engine}}"},
	}},
	{"Engines", "How many caches of tables (arrow) and of files (fluid) are there, in all namespaces?", number, "short", []query{
		{"sum by (engine) (max by (state, engine) (datacache_caches))", "{{engine}}"},
	}},
	{"Versions", "Which versions run, in how many processes?", number, "short", []query{
		{"count by (component, version) (datacache_build_info)", "{{component}} {{version}}"},
	}},
}

var fleetReaders = []panel{
	{"Most read", "Which ten caches send most?", stack, "Bps", []query{
		{"topk(10, " + rates("namespace, cache", "datacache_stream_bytes_total", chosen) + ")", "{{namespace}}/{{cache}}"},
	}},
	{"Sent and read", "How much do all of them send for what they read from buckets?", graph, "Bps", []query{
		{rates("", "datacache_stream_bytes_total", chosen), "sent"},
		{rates("", "datacache_load_read_bytes_total", chosen), "read from buckets"},
		{rates("", "datacache_load_cached_bytes_total", chosen), "read from the object cache"},
	}},
	{"Least memory left", "Which ten caches are nearest to a memory limit?", full, "percentunit", []query{
		{"topk(10, max by (namespace, cache) (" + used + chosen + " / " + limit + chosen + "))", "{{namespace}}/{{cache}}"},
	}},
	{"Slow clients", "In which ten caches do streams wait most for their clients?", graph, "short", []query{
		{"topk(10, " + rates("namespace, cache", "datacache_stream_send_wait_seconds_total", chosen) + ")", "{{namespace}}/{{cache}}"},
	}},
}

var fleetManager = []panel{
	{"Reconciliations", "How busy are the controllers, and do they fail?", graph, "ops", []query{
		{rates("controller", "controller_runtime_reconcile_total", ours), "{{controller}}"},
		{rates("controller", "controller_runtime_reconcile_errors_total", ours), "{{controller}}: errors"},
	}},
	{"Time of a reconciliation", "In which time are 95 % of them done?", graph, "s", []query{
		{within("controller_runtime_reconcile_time_seconds_bucket"+ours, "controller", "$__rate_interval"), "{{controller}}"},
	}},
	{"Waiting objects", "Does the manager keep up with changes?", graph, "short", []query{
		{"sum by (name) (workqueue_depth" + queues + ")", "{{name}}"},
	}},
	{"Admissions", "Does the webhook answer, and with which code?", graph, "reqps", []query{
		{rates("webhook, code", "controller_runtime_webhook_requests_total", hooks), "{{webhook}} {{code}}"},
	}},
}
