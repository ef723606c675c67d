// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import "github.com/kubeflow/datacache/api/v1alpha1"

// HeadStatus is what a head's /status (docs/contract.md) says of its cache to those who don't link the cache server: the manager and
// kubectl's plugin.
type HeadStatus struct {
	State    string `json:"state"`
	Reason   string `json:"reason"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Bytes    int64  `json:"bytes"`
	Splits   struct {
		Done  int64 `json:"done"`
		Total int64 `json:"total"`
	} `json:"splits"`
	Nodes    []NodeStatus `json:"nodes"`
	Datasets []Dataset    `json:"datasets"` // that clients have put
	Readers  []Reader     `json:"readers"`
	Access   struct {
		Readers    string `json:"readers"`    // Known or Anyone
		UnknownKey string `json:"unknownKey"` // ID of the key of a token that could not be checked without it
	} `json:"access"`
}

// Percent is the percentage of splits in memory; 100 for a table without rows.
func (h *HeadStatus) Percent() int32 {
	if h.Splits.Total == 0 {
		return 100
	}
	return int32(100 * h.Splits.Done / h.Splits.Total) // at most 100
}

// NodeStatus is what the head knows of a data node.
type NodeStatus struct {
	Index    int    `json:"index"`
	State    string `json:"state"`
	Rows     int64  `json:"rows"`
	Restarts int    `json:"restarts"`
	Memory   struct {
		Used  int64 `json:"used"`
		Limit int64 `json:"limit"`
	} `json:"memory"`
	Spill *SpillStatus `json:"spill"` // of a node whose rows are in files too
}

// Dataset is a dataset that a client has put.
type Dataset struct {
	v1alpha1.Dataset
	Reason    string `json:"reason,omitempty"`
	Published int64  `json:"published"` // seconds since the Unix epoch
}

// SpillStatus says how many bytes of files with rows a data node has.
type SpillStatus struct {
	Bytes int64 `json:"bytes"`
}

// Reader is a client that reads a cache: one rank of a job with all its streams, as a head's /status has it (docs/contract.md). Rows, Bytes
// and milliseconds are counted since it appeared there.
type Reader struct {
	ReaderKey
	World    int   `json:"world"`
	Streams  int   `json:"streams"` // open now
	Rows     int64 `json:"rows"`
	Bytes    int64 `json:"bytes"`
	ClientMS int64 `json:"client_ms"` // in which messages waited for the client
	NodeMS   int64 `json:"node_ms"`   // in which data nodes made messages
}

// ReaderKey tells readers apart.
type ReaderKey struct {
	Job    string `json:"job,omitempty"`
	Rank   int    `json:"rank"`
	Client string `json:"client"`
	Kind   string `json:"kind"`
}

// Since returns the reader with what it has counted since an earlier status, in which it was as was. If it left in between, its counters
// began anew, and all that they have counts.
func (r Reader) Since(was Reader) Reader {
	if r.Rows < was.Rows {
		return r
	}
	r.Rows, r.Bytes, r.ClientMS, r.NodeMS = r.Rows-was.Rows, r.Bytes-was.Bytes, r.ClientMS-was.ClientMS, r.NodeMS-was.NodeMS
	return r
}
