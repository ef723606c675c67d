// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package view

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
