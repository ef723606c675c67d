// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"slices"

	"github.com/kubeflow/datacache/internal/words"
)

// Status is the JSON of /status and of DoAction("status") in wire contract v1.
type Status struct {
	State  State  `json:"state"`
	Reason string `json:"reason"`
	// Incarnation is another one for each start of the head: whoever has started it can tell its answers from those of the process before.
	Incarnation string       `json:"incarnation"`
	Table       string       `json:"table"`
	Snapshot    int64        `json:"snapshot"`
	Rows        int64        `json:"rows"`  // in memory
	Bytes       int64        `json:"bytes"` // Arrow data in memory
	Splits      SplitStatus  `json:"splits"`
	Counted     bool         `json:"counted"` // the rows of all splits are known before these are loaded
	Nodes       []NodeStatus `json:"nodes"`
	Readers     []Reader     `json:"readers,omitempty"` // at most MaxReaders

	Access *AccessStatus `json:"access,omitempty"` // of a head with rules of who may read

	Datasets []DatasetStatus `json:"datasets,omitempty"` // that were put
}

// DatasetStatus describes a dataset that was put.
type DatasetStatus struct {
	Name        string `json:"name"`
	Fingerprint string `json:"fingerprint"`
	State       string `json:"state"` // Ready, Unavailable while a data node is missing, Failed, or Replaced
	Reason      string `json:"reason,omitempty"`
	Rows        int64  `json:"rows"`
	Bytes       int64  `json:"bytes"`
	Published   int64  `json:"published"` // seconds since the Unix epoch
	// Commit is the last commit since the head started; nil: there was none.
	Commit *CommitStatus `json:"commit,omitempty"`
}

// CommitStatus describes a commit of a dataset to a table.
type CommitStatus struct {
	Table    string `json:"table"`
	State    string `json:"state"` // Committing, CommitDone or CommitFailed
	Snapshot int64  `json:"snapshot,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// ServesEarly reports whether a cache that is not Ready answers early requests: its rows are counted, and all data nodes load them.
func (s Status) ServesEarly() bool {
	loads := func(n NodeStatus) bool { return n.State == NodeLoading || n.State == NodeReady }
	return s.Counted && len(s.Nodes) > 0 && !slices.ContainsFunc(s.Nodes, func(n NodeStatus) bool { return !loads(n) })
}

// AccessStatus is what a head says of its rules.
type AccessStatus struct {
	Readers string `json:"readers"` // Known or Anyone
	// UnknownKey is the ID of the key of a token that could not be checked, as the issuer's keys don't have it.
	UnknownKey string `json:"unknownKey,omitempty"`
}

// MaxReason is the greatest length of a reason in bytes. Clients limit the length of a status: pyarrow to 8 KiB, some to less.
const MaxReason = 1 << 10

// WithoutNodes returns the status without the list of nodes, which is nearly all of it in a large cache.
func (s Status) WithoutNodes() any {
	s.Nodes = nil
	return s
}

// SplitStatus counts splits.
type SplitStatus struct {
	Done  int `json:"done"`
	Total int `json:"total"`
}

// NodeStatus is the status of one data node as known to the head.
type NodeStatus struct {
	Index    int       `json:"index"`
	Address  string    `json:"address"`
	Machine  string    `json:"machine,omitempty"` // name of the machine that it runs on
	State    NodeState `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Rows     int64     `json:"rows"`
	Bytes    int64     `json:"bytes"`
	Restarts int       `json:"restarts"`
	// Incarnation is another one for each start of the data node, which shows it in its own /status; "" until one has joined.
	Incarnation string       `json:"incarnation,omitempty"`
	Splits      SplitStatus  `json:"splits"`
	Memory      MemoryStatus `json:"memory,omitzero"` // as the node said last
	Spill       *SpillStatus `json:"spill,omitempty"` // likewise, if its rows are in files too
}

// MemoryStatus is the memory of a process that rows, loading and clients have reserved, in bytes.
type MemoryStatus struct {
	Used  int64 `json:"used"`
	Peak  int64 `json:"peak"`
	Limit int64 `json:"limit"`
}

// SpillStatus says where the rows of a data node are whose chunks are in spill files too. All but Dir are bytes.
type SpillStatus struct {
	Dir      string `json:"dir"`
	Bytes    int64  `json:"bytes"`           // of the files
	Limit    int64  `json:"limit,omitempty"` // of the files; 0: the disk's
	Resident int64  `json:"resident"`        // of the rows in memory, beside those that a sweep holds for streams
	Pinned   int64  `json:"pinned"`          // of these, the part that stays there
}

// String says where the rows are.
func (s *SpillStatus) String() string {
	of := ""
	if s.Limit > 0 {
		of = " of " + words.Bytes(float64(s.Limit))
	}
	return fmt.Sprintf("%s%s in files, %s of it in memory", words.Bytes(float64(s.Bytes)), of, words.Bytes(float64(s.Resident)))
}

// MaxReaders is the number of readers that a status lists: those that read the most bytes.
const MaxReaders = 64

// Reader is a client that reads: one rank of a job with all its streams.
type Reader struct {
	Job    string `json:"job,omitempty"` // the reader's if that is known, or else as the client named it
	Client string `json:"client"`        // address, without the port
	Kind   Kind   `json:"kind"`
	Rank   int    `json:"rank"`
	World  int    `json:"world"` // 0: the kind has no ranks
	Traffic
}

// Traffic counts what streams sent since their reader appeared, and what they waited for.
type Traffic struct {
	Streams  int   `json:"streams"` // open now
	Rows     int64 `json:"rows"`
	Bytes    int64 `json:"bytes"`
	ClientMS int64 `json:"client_ms"` // summed over streams: milliseconds that a message waited for the client to read
	NodeMS   int64 `json:"node_ms"`   // likewise: that the data node worked on the next message
}

// Add adds other to t.
func (t *Traffic) Add(other Traffic) {
	t.Streams += other.Streams
	t.Rows += other.Rows
	t.Bytes += other.Bytes
	t.ClientMS += other.ClientMS
	t.NodeMS += other.NodeMS
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
