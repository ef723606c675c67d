// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package protocol is the contract with clients, wire contract v1: descriptors, tickets, the metadata of answers, FlightData messages and the
// JSON of /status. Package peer has the messages between head and data nodes.
package protocol

import (
	"github.com/kubeflow/datacache/cacheserver/assign"
)

// Dataset names the rows behind an answer. Two answers with equal fingerprints index the same rows alike.
type Dataset struct {
	TableUUID   string `json:"table_uuid"`
	Snapshot    int64  `json:"snapshot"` // 0 for a table without a snapshot
	Fingerprint string `json:"fingerprint"`
	Filter      string `json:"filter"` // as it was given; "" without one
}

// InfoMetadata is the app_metadata of a FlightInfo, as JSON.
type InfoMetadata struct {
	V       int             `json:"v"`
	Dataset Dataset         `json:"dataset"`
	Rows    int64           `json:"rows"`  // of the whole table
	Nodes   []assign.Bounds `json:"nodes"` // the rows of each data node
}

// EndpointMetadata is the app_metadata of a FlightEndpoint, as JSON.
type EndpointMetadata struct {
	Node int `json:"node"` // index into InfoMetadata.Nodes
}

// BatchMetadata is the app_metadata of a record batch, as JSON.
type BatchMetadata struct {
	// Busy is how many microseconds the data node worked since the stream's last message, or since the request;
	// what it waited for the client to take messages, or to ask for more, does not count.
	Busy int64 `json:"busy_us"`
}
