// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

// Status is the JSON of /status and of DoAction("status") in wire contract v1.
type Status struct {
	State    State        `json:"state"`
	Reason   string       `json:"reason"`
	Table    string       `json:"table"`
	Snapshot int64        `json:"snapshot"`
	Rows     int64        `json:"rows"`  // in memory
	Bytes    int64        `json:"bytes"` // Arrow data in memory
	Splits   SplitStatus  `json:"splits"`
	Nodes    []NodeStatus `json:"nodes"`
}

// SplitStatus counts splits.
type SplitStatus struct {
	Done  int `json:"done"`
	Total int `json:"total"`
}

// NodeStatus is the status of one data node as known to the head.
type NodeStatus struct {
	Index    int         `json:"index"`
	Address  string      `json:"address"`
	State    NodeState   `json:"state"`
	Reason   string      `json:"reason,omitempty"`
	Rows     int64       `json:"rows"`
	Bytes    int64       `json:"bytes"`
	Restarts int         `json:"restarts"`
	Splits   SplitStatus `json:"splits"`
}

// State is the state of a cache, as spelled in /status.
type State string

// The states. A Degraded cache was Ready and lacks a data node; docs/adr/0005 defines when a cache is Failed.
const (
	StatePlanning State = "Planning"
	StateLoading  State = "Loading"
	StateReady    State = "Ready"
	StateDegraded State = "Degraded"
	StateFailed   State = "Failed"
)

// NodeState is the state of one data node, as spelled in /status.
type NodeState string

// The states of a node.
const (
	NodeMissing NodeState = "Missing" // never joined
	NodeJoined  NodeState = "Joined"  // waits for its part of the plan
	NodeLoading NodeState = "Loading"
	NodeReady   NodeState = "Ready"
	NodeLost    NodeState = "Lost"
)
