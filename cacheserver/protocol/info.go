// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package protocol implements wire contract v1 with clients: descriptors, tickets, the metadata of responses, FlightData messages and
// the JSON of /status. Package peer has the messages between head and data nodes.
package protocol

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/kubeflow/datacache/cacheserver/assign"
)

// Dataset identifies the rows of a response. In responses with equal fingerprints, an index denotes the same row.
type Dataset struct {
	TableUUID   string `json:"table_uuid"`
	Snapshot    int64  `json:"snapshot"` // 0 for a table without a snapshot
	Fingerprint string `json:"fingerprint"`
	Filter      string `json:"filter"` // as given in the request; "" if there is none

	Name string `json:"name,omitempty"` // of a dataset that was put
}

// InfoMetadata is the app_metadata of a FlightInfo, as JSON.
type InfoMetadata struct {
	V       int             `json:"v"`
	Dataset Dataset         `json:"dataset"`
	Rows    int64           `json:"rows"`  // rows of the selection
	Nodes   []assign.Bounds `json:"nodes"` // the filtered rows of each data node

	// Narrow, in the answer to a Take, offers messages with shorter integers: requests with "narrow" get them.
	Narrow bool `json:"narrow,omitempty"`
	// Swept, likewise, says that not all rows stay in memory: rows by number cost much more than an epoch.
	Swept bool `json:"swept,omitempty"`

	Filtered  *int64     `json:"filtered_rows,omitempty"` // the number of filtered rows; nil if the request has no selection
	Selection *Selection `json:"selection,omitempty"`     // of the request; nil if it has none
	Loaded    *float64   `json:"loaded,omitempty"`        // share of the splits that are loaded, of an early answer; otherwise nil
}

// Encode returns the metadata as JSON. nodes is the JSON of Nodes, which must be nil.
func (m InfoMetadata) Encode(nodes []byte) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	name := []byte(`"nodes":`) // does not occur before that: in a string its quotes are escaped
	before, after, _ := bytes.Cut(text, append(name, "null"...))
	return slices.Concat(before, name, nodes, after), nil
}

// EndpointMetadata is the app_metadata of a FlightEndpoint, as JSON.
type EndpointMetadata struct {
	Node int `json:"node"` // index into InfoMetadata.Nodes
}

// BatchMetadata is the app_metadata of a record batch, as JSON.
type BatchMetadata struct {
	// Busy is the time in microseconds that the data node worked since the previous message of the stream or, for the first one,
	// since the request. Time spent waiting for the client to receive messages or to send requests is not included.
	Busy int64 `json:"busy_us"`
	// Load is the time in microseconds that an early stream waited for the load since the previous message.
	Load int64 `json:"load_us,omitempty"`
}
