// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"cmp"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// Put tells a node of a put, whose parts it then accepts. It is immutable.
type Put struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Mode   string `json:"mode"`
	Writer string `json:"writer,omitempty"` // the client whose limit the rows count against; empty: one without a name
	Parts  int    `json:"parts"`
	Nodes  int    `json:"nodes"`  // of the cache
	Schema []byte `json:"schema"` // an Arrow IPC message
	// Columns describe the columns for the fingerprint: name, type, and whether nulls are allowed.
	Columns [][3]string `json:"columns"`
	Memory  int64       `json:"memory,omitempty"` // about how many bytes the schema takes where it is parsed
	Keep    string      `json:"keep"`
	Recipe  string      `json:"recipe,omitempty"`
	Source  string      `json:"source,omitempty"`
	TTL     int64       `json:"ttl_s"`
}

// MoreForWriter says in errors whose limit is reached, and how to get more.
func (p Put) MoreForWriter() string {
	return "all that " + cmp.Or(p.Writer, "clients without a name") + " may have put: drop or abort some of it, or ask the cache's owner for a higher spec.arrow.puts.limitPerWriter (--put-limit-per-writer, env PUT_LIMIT_PER_WRITER)"
}

// Node is the data node that a part belongs to.
func (p Put) Node(part int) int { return part * p.Nodes / p.Parts }

// Copy is the data node for the copy of a part; -1 if the put has no copies.
func (p Put) Copy(part int) int {
	if p.Keep != protocol.KeepReplica {
		return -1
	}
	return (p.Node(part) + 1) % p.Nodes
}

// MostAttempts is how many different attempts of a part are kept, the latest ones.
const MostAttempts = 4

// Publish tells a node which parts of a put the dataset has. The node makes their rows readable and answers with Staged; it keeps everything
// that it has of the put until Settle.
type Publish struct {
	ID    string             `json:"id"`
	As    Publication        `json:"as"`
	Parts []protocol.PutPart `json:"parts"` // of the publication that belong to the node or of which it has the copy, by number
}

// Publication is the record of a publication, the same on all nodes.
type Publication struct {
	Fingerprint string `json:"fingerprint"`
	Rows        int64  `json:"rows"` // of all nodes
	At          int64  `json:"at"`   // nanoseconds since the Unix epoch: of two versions of a name, the later one counts
}

// Settle tells a node that all nodes have the rows of a publication: what else they have of the put can be freed.
type Settle struct {
	ID string `json:"id"`
}

// Unput tells a node to free what it has of a put or of the dataset made by it. It answers with Staged.
type Unput struct {
	ID string `json:"id"`
}

// WriteFiles is the signed body of protocol.PutWrite: the node writes its rows of a publication into files. It answers with one result for each file, in
// the order of rows.
type WriteFiles struct {
	Put         string `json:"put"`
	Fingerprint string `json:"fingerprint"`
	Order       []byte `json:"order"` // encoded by package sink
}

// Staged tells the head what a node has of a put: after each part, which the head answers with Known, after Publish, and for every put when the
// node joins. The last one of those, or the only one, has All set.
type Staged struct {
	Put   *Put               `json:"put,omitempty"` // when the node joins
	ID    string             `json:"id"`
	Parts []protocol.PutPart `json:"parts,omitempty"` // that have been put, or some of them
	Has   *HeldRows          `json:"has,omitempty"`
	// Chosen are parts of the publication that are on the node, copies included. A node that joins reports all of them, in several messages.
	Chosen []protocol.PutPart `json:"chosen,omitempty"`
	// Absent are parts that the node can't send as Copy says, as it does not have them.
	Absent []protocol.PutPart `json:"absent,omitempty"`
	// Refusal says why a node could not publish.
	Refusal string `json:"refusal,omitempty"`
	All     bool   `json:"all,omitempty"`
	Freed   bool   `json:"freed,omitempty"` // the node has nothing of the put, in memory or in files, after Unput
}

// Known tells a node that the head knows of parts that the node has put: their clients may have receipts.
type Known struct {
	ID    string             `json:"id"`
	Parts []protocol.PutPart `json:"parts"`
}

// Copy orders a node to send parts to another node, which must have them too and lacks them.
type Copy struct {
	ID      string             `json:"id"`
	To      int                `json:"to"` // index of the other node
	Address string             `json:"address"`
	Parts   []protocol.PutPart `json:"parts"`
}

// HeldRows is the rows of a publication that a node has.
type HeldRows struct {
	Publication
	NodeRows    int64   `json:"node_rows"`
	Bytes       int64   `json:"bytes"`
	ColumnBytes []int64 `json:"column_bytes"`
	Fits        []byte  `json:"fits"` // by column: in how few bytes its integers fit, as rows.Rows.Fits encodes it
	Settled     bool    `json:"settled,omitempty"`
}
