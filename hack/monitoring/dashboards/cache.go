// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// What selects the chosen cache: in the manager's metrics, and in those of its pods.
const (
	told = `{namespace="$namespace", name="$cache"}`
	pods = `{namespace="$namespace", cache="$cache"}`
)

var cacheBoard = board{
	name: "cache", title: "Datacache: one cache",
	description: "How far a DataCache is, what its load waits for, who reads it and who waits for whom.",
	variables: []variable{
		{name: "namespace", label: "namespace", series: "datacache_cache_info"},
		{name: "cache", label: "name", series: `datacache_cache_info{namespace="$namespace"}`},
	},
	rows: []row{{"How far", cacheState}, {"Load", cacheLoad}, {"Readers", cacheReaders}, {"Memory", cacheMemory}},
}

var cacheState = []panel{
	{"State", "Is it Ready?", word, "short", []query{
		{"max by (state) (datacache_cache_info" + told + ")", "{{state}}"},
	}},
	{"Loaded", "Which part of it is loaded?", number, "percentunit", []query{
		{"max(datacache_cache_loaded_ratio" + told + ")", "loaded"},
	}},
	{"In memory", "How many bytes are in memory, of one copy?", number, "bytes", []query{
		{"max(datacache_cache_bytes" + told + ")", "in memory"},
	}},
	{"Pods", "How many of its pods answer Prometheus?", number, "short", []query{
		{"count(datacache_build_info" + pods + ")", "pods"},
	}},
}

var cacheLoad = []panel{
	{"Rows loaded", "Does it load, and are all data nodes equally fast?", graph, "rowsps", []query{
		{rates("pod", "datacache_load_rows_total", pods), "{{pod}}"},
	}},
	{"Bytes loaded", "How much comes from the bucket and from the object cache, and how much is that in memory?", graph, "Bps", []query{
		{rates("", "datacache_load_read_bytes_total", pods), "from the bucket"},
		{rates("", "datacache_load_cached_bytes_total", pods), "from the object cache"},
		{rates("", "datacache_load_decoded_bytes_total", pods), "written into memory"},
	}},
	{"Load workers", "What do workers of the load spend their time on: fetching, decoding, copying?", stack, "short", []query{
		{rates("stage", "datacache_load_seconds_total", pods), "{{stage}}"},
	}},
	{"Requests to the store", "Does the object store fail or throttle?", graph, "reqps", []query{
		{rates("", "datacache_objstore_requests_total", pods), "requests"},
		{rates("", "datacache_objstore_retries_total", pods), "tried again"},
		{rates("", "datacache_objstore_failures_total", pods), "failed for good"},
	}},
}

var cacheReaders = []panel{
	{"Rows sent", "How fast are rows read, by kind of request?", stack, "rowsps", []query{
		{rates("kind", "datacache_stream_rows_total", pods), "{{kind}}"},
	}},
	{"Bytes to jobs", "Which job reads how much?", stack, "Bps", []query{
		{rates("exported_job", "datacache_job_bytes_total", pods), "{{exported_job}}"},
	}},
	{"Who waits", "Who waits longer: the cache for its clients, or they for the cache?", graph, "short", []query{
		{rates("", "datacache_stream_send_wait_seconds_total", pods), "the cache waits for clients"},
		{rates("", "datacache_stream_work_seconds_total", pods), "clients wait for the cache"},
	}},
	{"Turns", "Which job waits because it is another's turn?", graph, "short", []query{
		{rates("exported_job", "datacache_job_wait_seconds_total", pods), "{{exported_job}}"},
	}},
	{"Open streams", "How many streams are open, by kind of request?", stack, "short", []query{
		{"sum by (kind) (datacache_streams" + pods + ")", "{{kind}}"},
	}},
	{"Calls", "Are calls refused, and with which code?", graph, "reqps", []query{
		{rates("code", "datacache_requests_total", pods), "{{code}}"},
	}},
}

var cacheMemory = []panel{
	{"Memory used", "Which pod is near its memory limit?", full, "percentunit", []query{
		{"max by (pod) (datacache_memory_used_bytes" + pods + " / datacache_memory_limit_bytes" + pods + ")", "{{pod}}"},
	}},
	{"Memory of clients", "How much of it do clients hold? Those that don't read hold most.", graph, "bytes", []query{
		{"max by (pod) (datacache_memory_clients_bytes" + pods + ")", "{{pod}}"},
	}},
	{"Filters in memory", "How much memory do the indexes of clients' filters take?", graph, "bytes", []query{
		{"max by (pod) (datacache_filter_bytes" + pods + ")", "{{pod}}"},
	}},
	{"Filters made", "Are indexes of filters made again and again? Then --filter-memory is too small.", graph, "short", []query{
		{rates("pod", "datacache_filter_seconds_total", pods), "{{pod}}"},
	}},
}
