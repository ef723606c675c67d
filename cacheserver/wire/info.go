// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire is the one place that knows the bytes between clients, head and data nodes: descriptors,
// tickets, answers' metadata and FlightData messages of wire contract v1.
package wire

import "github.com/kubeflow/datacache/cacheserver/plan"

// Dataset names the rows behind an answer. Two answers with equal fingerprints index the same rows alike.
type Dataset struct {
	TableUUID   string `json:"table_uuid"`
	Snapshot    int64  `json:"snapshot"` // 0 for a table without a snapshot
	Fingerprint string `json:"fingerprint"`
}

// InfoMetadata is the app_metadata of a FlightInfo, as JSON.
type InfoMetadata struct {
	V       int           `json:"v"`
	Dataset Dataset       `json:"dataset"`
	Rows    int64         `json:"rows"`  // of the whole table
	Nodes   []plan.Bounds `json:"nodes"` // the rows of each data node
}

// EndpointMetadata is the app_metadata of a FlightEndpoint, as JSON.
type EndpointMetadata struct {
	Node int `json:"node"` // index into InfoMetadata.Nodes
}
