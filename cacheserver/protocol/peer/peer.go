// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package peer is what head and data nodes say to each other: one long-lived stream a node, JSON messages.
//
// Both sides first prove that they have the cache's secret; every message then carries a MAC. The node's first message
// is Hello. The head answers with Assign as soon as it has a plan; the node loads
// and reports. With its part the node keeps a record of the whole plan. Whenever it joins again (its own or the
// head's restart, a broken connection) it says which plan it holds; a head that has lost the plan asks for the
// record by Recall and needs no object store to go on. The stream is also the node's sign of life: see
// HeartbeatEvery.
package peer

import (
	"encoding/json"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// Version is the version of this protocol; head and nodes must speak the same.
const Version = 1

// HeartbeatEvery is how often a node sends Progress, whether or not there is any.
const HeartbeatEvery = 500 * time.Millisecond

// ToHead is one message of a data node; exactly one field is set.
type ToHead struct {
	Hello    *Hello       `json:"hello,omitempty"`
	Progress *Progress    `json:"progress,omitempty"`
	Loaded   *Loaded      `json:"loaded,omitempty"`
	Failed   *Failed      `json:"failed,omitempty"`
	Record   *RecordPiece `json:"record,omitempty"`
	Leaving  *Leaving     `json:"leaving,omitempty"`
}

// ToNode is one message of the head; exactly one field is set.
type ToNode struct {
	Assign *Assign `json:"assign,omitempty"`
	Ready  *Ready  `json:"ready,omitempty"`
	Recall *Recall `json:"recall,omitempty"`
	Abort  *Abort  `json:"abort,omitempty"`
}

// Hello introduces a node. Held is nil unless the node has loaded or is loading a plan.
type Hello struct {
	V           int    `json:"v"`
	Index       int    `json:"index"`
	Incarnation string `json:"incarnation"` // new in every process
	Address     string `json:"address"`     // host:port at which clients reach its Flight service
	Held        *Held  `json:"held,omitempty"`
}

// Held names the plan that a node has loaded or is loading, so that a restarted head can go on with it.
type Held struct {
	Plan    string `json:"plan"`    // fingerprint of the plan
	Request string `json:"request"` // fingerprint of the source and selection that the head was started with
	Ready   bool   `json:"ready"`   // the whole cache was Ready with this plan: clients may have seen its rows
}

// Assign gives a node its part of the plan and all that it needs to load and serve it.
// A node that already holds the plan keeps what it has and only takes the salt and the record.
type Assign struct {
	Plan      string            `json:"plan"`
	Request   string            `json:"request"`
	Dataset   protocol.Dataset  `json:"dataset"`
	Pin       json.RawMessage   `json:"pin"`       // opens the version that was planned: source.Version
	Selection json.RawMessage   `json:"selection"` // likewise
	First     int               `json:"first"`     // plan-wide number of the node's first split
	Splits    []json.RawMessage `json:"splits"`    // read by source.Source.Split
	Salt      []byte            `json:"salt"`      // of the key that seals tickets, see TicketKey
	Record    []byte            `json:"record"`    // of the whole plan, for the head alone to read
	// Ready says that the cache was Ready with this plan before: the other nodes hold rows that clients know.
	Ready bool `json:"ready"`
}

// Ready tells a node that the cache became Ready; the record, now with the hashes of all splits, replaces that
// of the assignment.
type Ready struct {
	Plan   string `json:"plan"`
	Record []byte `json:"record"`
}

// Recall asks a node for the record that it keeps. The node answers with RecordPieces.
type Recall struct{}

// RecordBytes is how much of a record one RecordPiece has at most; as base64 it must fit gRPC's 4 MiB.
const RecordBytes = 1 << 20

// RecordPiece is a part of a node's record, in order.
type RecordPiece struct {
	Data []byte `json:"data"`
	Last bool   `json:"last,omitempty"`
}

// Progress reports what was done since the last message; it doubles as the heartbeat.
type Progress struct {
	Plan    string      `json:"plan,omitempty"`
	Done    []SplitDone `json:"done,omitempty"`
	Bytes   int64       `json:"bytes"`             // Arrow bytes in memory now
	Trouble string      `json:"trouble,omitempty"` // why loading does not get on, if it does not
}

// SplitDone is one loaded split.
type SplitDone struct {
	Split int    `json:"split"` // plan-wide number
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"`
	Hash  string `json:"hash"` // of its rows as they lie in memory
}

// Loaded says that every split of the node's part is in memory and was reported.
type Loaded struct {
	Plan        string  `json:"plan"`
	Rows        int64   `json:"rows"`
	Bytes       int64   `json:"bytes"`
	ColumnBytes []int64 `json:"column_bytes"` // Arrow body bytes by column of the served schema
}

// Failed says that the node cannot load its part, and why trying again does not help; the cache fails with it.
type Failed struct {
	Plan   string `json:"plan,omitempty"`
	Reason string `json:"reason"`
}

// Leaving says that the node is about to stop, as told.
type Leaving struct {
	Reason string `json:"reason"`
}

// Abort tells a node that the cache failed, or that another process took its place.
type Abort struct {
	Reason string `json:"reason"`
	// Plan is the plan that failed: the node frees its part of it. Rows of other plans it keeps.
	Plan string `json:"plan,omitempty"`
	// Final asks the node's process to end: it is not wanted back.
	Final bool `json:"final,omitempty"`
}
