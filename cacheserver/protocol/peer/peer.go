// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package peer is the protocol between head and data nodes: one long-lived stream per node, with JSON messages.
//
// Both sides first prove that they have the cache's secret; every message then carries a MAC. The node's first message is Hello. While the
// head plans many files, it asks nodes to read some of their footers (Plan). It sends Assign as soon as it has a plan; the node loads its part and reports progress. The node also keeps the plan's outline,
// its own part and, with Keep, those of two other nodes. Whenever it joins again (after its own or the head's restart, or a broken
// connection) it names the plan that it holds; a head that has lost the plan requests outline and parts with Recall, each from one node, and
// can continue without the object store. Messages on the stream also show that the node is alive: see HeartbeatEvery.
package peer

import (
	"encoding/json"
	"time"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// Version is the version of this protocol, which the fields of tickets are part of: a node that did not know a ticket's field would send
// other rows. Head and nodes must speak the same.
const Version = 9

// HeartbeatEvery is the interval at which a node sends Progress, even if there is none.
const HeartbeatEvery = 500 * time.Millisecond

// ToHead is a message from a data node; exactly one field is set.
type ToHead struct {
	Hello    *Hello    `json:"hello,omitempty"`
	Progress *Progress `json:"progress,omitempty"`
	Loaded   *Loaded   `json:"loaded,omitempty"`
	Failed   *Failed   `json:"failed,omitempty"`
	Piece    *Piece    `json:"piece,omitempty"`
	Leaving  *Leaving  `json:"leaving,omitempty"`
	Indexed  *Indexed  `json:"indexed,omitempty"`
	Planned  *Planned  `json:"planned,omitempty"`
	Measured *Measured `json:"measured,omitempty"`
	Staged   *Staged   `json:"staged,omitempty"`
}

// ToNode is a message from the head; exactly one field is set.
type ToNode struct {
	Assign *Assign `json:"assign,omitempty"`
	Keep   *Keep   `json:"keep,omitempty"`
	Ready  *Ready  `json:"ready,omitempty"`
	Recall *Recall `json:"recall,omitempty"`
	Abort  *Abort  `json:"abort,omitempty"`
	Index  *Index  `json:"index,omitempty"`

	Unindex *Unindex `json:"unindex,omitempty"`
	Plan    *Plan    `json:"plan,omitempty"`
	Lengths *Lengths `json:"lengths,omitempty"`

	Put     *Put     `json:"put,omitempty"`
	Publish *Publish `json:"publish,omitempty"`
	Settle  *Settle  `json:"settle,omitempty"`
	Unput   *Unput   `json:"unput,omitempty"`
	Known   *Known   `json:"known,omitempty"`
	Copy    *Copy    `json:"copy,omitempty"`
}

// Hello introduces a node. Held is nil unless the node has loaded or is loading a plan.
type Hello struct {
	V           int    `json:"v"`
	Index       int    `json:"index"`
	Incarnation string `json:"incarnation"` // different in every process
	Address     string `json:"address"`     // host:port where clients reach its Flight service
	Machine     string `json:"machine,omitempty"`
	Disk        bool   `json:"disk,omitempty"` // it stores what clients put on a disk
	Held        *Held  `json:"held,omitempty"`
}

// Held names the plan that a node has loaded or is loading, so that a restarted head can continue with it.
type Held struct {
	Plan    string `json:"plan"`    // fingerprint of the plan
	Request string `json:"request"` // fingerprint of the source and selection that the head was started with
	Ready   bool   `json:"ready"`   // the whole cache was Ready with this plan, so clients may have read its rows
	Parts   []int  `json:"parts"`   // that the node keeps
}

// Assign gives a node its part of the plan, and everything it needs to load and serve it. A node that already holds the plan keeps
// its rows and its part.
type Assign struct {
	Plan      string           `json:"plan"`
	Request   string           `json:"request"`
	Dataset   protocol.Dataset `json:"dataset"`
	Pin       json.RawMessage  `json:"pin"`       // opens the planned version: source.Version
	Selection json.RawMessage  `json:"selection"` // likewise
	First     int              `json:"first"`     // number of the node's first split in the whole plan
	Splits    int              `json:"splits"`    // number of the node's splits
	Part      []byte           `json:"part"`      // these splits, decoded by source.DecodeSplits; empty for a node that holds the plan
	Salt      []byte           `json:"salt"`      // of the key that authenticates tickets, see TicketKey
	Outline   []byte           `json:"outline"`   // of the whole plan; opaque to the node
	// Ready says that the cache was Ready with this plan before, so the other nodes hold rows that clients know.
	Ready bool `json:"ready"`
	// FirstEpoch says which of the node's splits are needed first; nil: that is not known.
	FirstEpoch *First `json:"first_epoch,omitempty"`
	// Trace is the span of the cache's load, as a traceparent (W3C Trace Context); empty if there is none.
	Trace string `json:"trace,omitempty"`
}

// First is an epoch whose rows are loaded first.
type First struct {
	protocol.First
	Rows int64         `json:"rows"` // of all data nodes
	Own  assign.Bounds `json:"own"`  // the node's
}

// Keep gives a node a part of a plan to keep for the head. A field that is empty leaves what the node has of it.
type Keep struct {
	Plan   string `json:"plan"`
	Part   int    `json:"part"`
	Splits []byte `json:"splits,omitempty"`
	Loaded []byte `json:"loaded,omitempty"` // rows and hashes of the part's splits, once the cache is Ready; opaque to the node
}

// Ready tells a node that the cache became Ready. The outline, which now has digests of the loaded rows, replaces the assignment's.
type Ready struct {
	Plan    string `json:"plan"`
	Outline []byte `json:"outline"`
}

// Plan asks a node to plan some data files of a version: source.FilePlanner. The node answers with Planned.
type Plan struct {
	ID        int64           `json:"id"`
	Pin       json.RawMessage `json:"pin"`       // source.Version
	Selection json.RawMessage `json:"selection"` // likewise
	Files     []byte          `json:"files"`     // encoded
}

// Planned answers Plan.
type Planned struct {
	ID     int64  `json:"id"`
	Splits []byte `json:"splits,omitempty"` // encoded
	Reason string `json:"reason,omitempty"` // why the files were not planned; empty if they were
}

// Recall requests a part of a plan that the node keeps, or its outline. The node answers with Pieces: with one that is empty if it does not
// have what is requested.
type Recall struct {
	Plan string `json:"plan"`
	Part int    `json:"part"` // Outline: the outline, as Splits
}

// Outline is the part in a Recall of the outline.
const Outline = -1

// PieceBytes is the maximum length of a Piece; encoded as base64 it must fit in gRPC's limit of 4 MiB.
const PieceBytes = 1 << 20

// Piece is some of what a Recall requests; the pieces are sent in order, Splits before Loaded.
type Piece struct {
	Splits []byte `json:"splits,omitempty"`
	Loaded []byte `json:"loaded,omitempty"`
	Last   bool   `json:"last,omitempty"`
}

// Progress reports the work done since the last message; it is also the heartbeat.
type Progress struct {
	Plan    string      `json:"plan,omitempty"`
	Done    []SplitDone `json:"done,omitempty"`
	Bytes   int64       `json:"bytes"`             // of the rows that are in memory
	Trouble string      `json:"trouble,omitempty"` // why loading makes no progress; empty if it does
	Vitals  *Vitals     `json:"vitals,omitempty"`  // about once a second
}

// Vitals is what people see of a node on the head's page.
type Vitals struct {
	Memory  protocol.MemoryStatus `json:"memory"`
	Puts    protocol.MemoryStatus `json:"puts"`             // the part of it for what clients put
	Writer  int64                 `json:"writer,omitempty"` // the limit of one writer within it; 0: no limit
	Spill   *protocol.SpillStatus `json:"spill,omitempty"`
	Total   protocol.Traffic      `json:"total"`   // since the node started
	Readers []protocol.Reader     `json:"readers"` // at most protocol.MaxReaders
}

// SplitDone reports a loaded split.
type SplitDone struct {
	Split int    `json:"split"` // plan-wide number
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"`
	Hash  []byte `json:"hash"` // 16 bytes: of its rows as stored in memory
}

// Loaded says that every split of the node's part is in memory and has been reported.
type Loaded struct {
	Plan        string  `json:"plan"`
	Rows        int64   `json:"rows"`
	Bytes       int64   `json:"bytes"`
	ColumnBytes []int64 `json:"column_bytes"`    // Arrow body bytes by column of the served schema
	Fits        []byte  `json:"fits"`            // in how few bytes its integers fit, likewise: rows.Rows.Fits
	Swept       bool    `json:"swept,omitempty"` // not all of them stay in memory
}

// Failed says that the node cannot load its part for a reason that a retry does not fix; the cache then fails.
type Failed struct {
	Plan   string `json:"plan,omitempty"`
	Reason string `json:"reason"`
}

// Leaving says that the node is about to stop because it was told to.
type Leaving struct {
	Reason string `json:"reason"`
}

// Abort tells a node that the cache failed, or that another process replaced it.
type Abort struct {
	Reason string `json:"reason"`
	// Plan is the plan that failed: the node frees its rows of this plan and keeps those of others.
	Plan string `json:"plan,omitempty"`
	// Final tells the node's process to exit and not to join again.
	Final bool `json:"final,omitempty"`
}

// Index asks a node for the index of a filter over its rows of a plan. A node that has it answers at once.
type Index struct {
	Plan   string `json:"plan"`
	ID     string `json:"id"` // of the filter, in tickets
	Filter string `json:"filter"`
	Job    string `json:"job"` // whose request is the first for it; nodes share their time fairly among jobs
}

// Unindex says that no client waits for the index of a filter any more. A node that is making it stops, without an answer about it.
type Unindex struct {
	Plan string `json:"plan"`
	ID   string `json:"id"`
}

// Indexed answers Index. If the index was not made since nobody waits for it, ID is empty. The node keeps the index until its process ends, the plan is replaced, or a later answer on the same stream
// lists it in Dropped.
type Indexed struct {
	Plan    string   `json:"plan"`
	ID      string   `json:"id"`
	Rows    int64    `json:"rows"`              // for which the filter is true
	Hash    string   `json:"hash"`              // of which rows they are
	Refusal string   `json:"refusal,omitempty"` // why there is no index; empty if there is
	NoRoom  bool     `json:"no_room,omitempty"` // it was refused for want of memory
	Dropped []string `json:"dropped,omitempty"` // indexes that the node has dropped to make this one
}

// MostLengths is the maximum of Lengths.Positions unless rows are only counted: the answer must fit in gRPC's limit of 4 MiB.
const MostLengths = 1 << 18

// Lengths asks a node for the lengths of its rows among the next positions of a ticket's sequence. The node answers with Measured.
type Lengths struct {
	ID        int64           `json:"id"`
	Ticket    protocol.Ticket `json:"ticket"` // of kind Epoch or Shard; its column is one of lengths
	Positions uint64          `json:"positions"`
	// Over asks for the number of rows that are longer instead, unless it is 0.
	Over int32 `json:"over,omitempty"`
}

// Measured answers Lengths.
type Measured struct {
	ID      int64  `json:"id"`
	Lengths []byte `json:"lengths,omitempty"` // in the order of the sequence, each as int32 in little endian
	Long    int64  `json:"long,omitempty"`    // Over: the number of longer rows
	First   int64  `json:"first,omitempty"`   // the first of them, counted among the node's rows in the order of the sequence
	Length  int32  `json:"length,omitempty"`  // of the first
	Reason  string `json:"reason,omitempty"`  // why there is no answer; empty if there is
}
