// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

const (
	objects = "datacache_objectcache_"
	mirror  = "datacache_mirror_"
	taken   = objects + "bucket_bytes"
	quota   = objects + "bucket_quota_bytes"
	nodes   = `{namespace="$namespace"}` // the object caches of the chosen namespace
)

var objectCacheBoard = board{
	name: "object-cache", title: "Datacache: object cache",
	description: "What the object cache saves, whether it has room, how its nodes are, and what its mirrors do.",
	variables:   []variable{{name: "namespace", label: "namespace", series: objects + "members"}},
	rows:        []row{{"Use", objectCacheUse}, {"Room", objectCacheRoom}, {"Nodes", objectCacheNodes}, {"Mirrors", objectCacheMirrors}},
}

var objectCacheUse = []panel{
	{"Hit ratio", "Which part of the reads finds its object here?", graph, "percentunit", []query{
		{share(rates("bucket", objects+"hits_total", nodes), rates("bucket", objects+"misses_total", nodes)), "{{bucket}}"},
	}},
	{"Reads", "How many reads find their object, and how many don't?", stack, "reqps", []query{
		{rates("", objects+"hits_total", nodes), "found"},
		{rates("", objects+"misses_total", nodes), "not found"},
	}},
	{"Bytes", "How much is read and written?", graph, "Bps", []query{
		{rates("", objects+"sent_bytes_total", nodes), "sent"},
		{rates("", objects+"received_bytes_total", nodes), "received"},
	}},
	{"Requests", "Which requests are refused?", graph, "reqps", []query{
		{rates("method, code", objects+"requests_total", nodes), "{{method}} {{code}}"},
	}},
}

var objectCacheRoom = []panel{
	{"Room used", "Which bucket is full?", full, "percentunit", []query{
		{"sum by (bucket) (" + taken + nodes + ") / sum by (bucket) (" + quota + nodes + ")", "{{bucket}}"},
	}},
	{"Objects", "How many objects does each bucket have?", stack, "short", []query{
		{"sum by (bucket) (" + objects + "bucket_objects" + nodes + ")", "{{bucket}}"},
	}},
	{"Evicted", "How much is removed to make room? Much means that the bucket is too small.", graph, "Bps", []query{
		{rates("bucket", objects+"evicted_bytes_total", nodes), "{{bucket}}"},
	}},
	{"Disks", "Which disk fails, or damages objects?", graph, "ops", []query{
		{rates("pod", objects+"disk_failures_total", nodes), "{{pod}}: failures"},
		{rates("pod", objects+"damaged_total", nodes), "{{pod}}: damaged"},
	}},
}

var objectCacheNodes = []panel{
	{"Members", "Do all nodes see the same members?", graph, "short", []query{
		{"max(" + objects + "members" + nodes + ")", "most"},
		{"min(" + objects + "members" + nodes + ")", "fewest"},
	}},
	{"Requests between nodes", "Do nodes reach each other?", graph, "reqps", []query{
		{rates("outcome", objects+"forwards_total", nodes), "{{outcome}}"},
		{rates("outcome", objects+"part_requests_total", nodes), "parts: {{outcome}}"},
	}},
	{"Token reviews", "Does the API server say whose token it is?", graph, "reqps", []query{
		{rates("outcome", objects+"review_seconds_count", nodes), "{{outcome}}"},
	}},
	{"xDS clients", "How many Envoys and gRPC clients get their configuration here, and do they reject it?", graph, "short", []query{
		{"sum(datacache_xds_streams" + nodes + ")", "clients"},
		{rates("", "datacache_xds_rejected_total", nodes), "rejected a second"},
	}},
}

var objectCacheMirrors = []panel{
	{"Mirrors' hit ratio", "Which part of models and images comes from the nodes' disks?", graph, "percentunit", []query{
		{share(rates("kind", mirror+"hits_total", nodes), rates("kind", mirror+"misses_total", nodes)), "{{kind}}"},
	}},
	{"Bytes from upstream", "How much is read from hubs and registries?", graph, "Bps", []query{
		{rates("kind", mirror+"origin_bytes_total", nodes), "{{kind}}"},
	}},
	{"Upstream's failures", "Do hubs and registries refuse, fail, or send what does not match its digest?", graph, "reqps", []query{
		{rates("kind", mirror+"refused_total", nodes), "{{kind}}: refused"},
		{rates("kind", mirror+"stale_total", nodes), "{{kind}}: stale"},
		{rates("kind", mirror+"poisoned_total", nodes), "{{kind}}: poisoned"},
	}},
	{"Left to Xet", "How many files are too large for the mirror?", graph, "reqps", []query{
		{rates("kind", mirror+"large_total", nodes), "{{kind}}"},
	}},
}
