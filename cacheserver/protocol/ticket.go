// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/json"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/internal/identity"
)

// Ticket entitles a client to read certain rows of a dataset, in a certain order, from one incarnation of a data node. The head
// issues it; clients treat its sealed form as opaque bytes.
type Ticket struct {
	Dataset     string        `json:"d"`           // fingerprint
	Node        int           `json:"n"`           // index of the data node
	Incarnation string        `json:"i"`           // incarnation of that node known to the head
	Expires     int64         `json:"x"`           // seconds since the Unix epoch
	Kind        Kind          `json:"k"`           // what follows
	Bounds      assign.Bounds `json:"b"`           // the filtered rows that the node holds
	Rows        assign.Bounds `json:"r,omitzero"`  // Shard: the rows of the selection to read from this node
	Epoch       epoch.Epoch   `json:"e,omitzero"`  // Epoch, Mix: with Rows set
	Share       epoch.Share   `json:"s,omitzero"`  // Epoch, Mix
	Mix         *epoch.Mix    `json:"m,omitempty"` // Mix
	Columns     []int         `json:"c,omitempty"` // indices into the served schema; none means all
	Narrow      string        `json:"o,omitempty"` // the types of the columns' integers in messages, see rows.Codes; empty: those of the schema
	Job         string        `json:"j,omitempty"` // the job that reads: the reader's, or else the one that the client names; none: the node takes the client's address
	Claimed     string        `json:"l,omitempty"` // the job that the client names, where Job is the reader's; it is only shown
	Filter      string        `json:"f,omitempty"` // id of the filter; empty: the filtered rows are all rows
	Split       *epoch.Split  `json:"p,omitempty"` // nil: the rows of the selection are the filtered rows
	Filtered    int64         `json:"q,omitempty"` // with Split: the number of filtered rows of all nodes
	Early       bool          `json:"y,omitempty"` // the data node may still be loading: the call waits for rows

	Reader *identity.Identity `json:"w,omitempty"` // who asked the head; nil: that is not known
}

// Cursor iterates over the filtered rows of the ticket's kind Shard, Epoch or Mix, of all nodes.
func (t Ticket) Cursor() (c *epoch.Cursor, err error) {
	switch {
	case t.Kind == Shard:
		c = epoch.NewRange(uint64(t.Rows[0]), uint64(t.Rows[1]))
	case t.Mix != nil:
		c, err = epoch.NewMixCursor(t.Epoch, *t.Mix, t.Share)
	default:
		c, err = epoch.NewCursor(t.Epoch, t.Share)
	}
	if err == nil && t.Split != nil {
		c.Split(*t.Split, uint64(t.Filtered))
	}
	return c, err
}

// ticketVersion is the first byte of a sealed ticket.
const ticketVersion = 2

// Sealer encrypts and opens tickets with a key that head and nodes share. It is immutable and safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// NewSealer makes a sealer from a key of any length; 32 random bytes are recommended.
func NewSealer(key []byte) Sealer {
	own := sha256.Sum256(key)
	block, err := aes.NewCipher(own[:])
	if err != nil {
		panic(err) // the key has a valid length
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has the right block size
	}
	return Sealer{aead}
}

// Seal encodes a ticket as version, and its JSON encrypted by AES-256-GCM with the version as additional data.
func (s Sealer) Seal(t Ticket) ([]byte, error) {
	body, err := json.Marshal(t)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "seal ticket: %v", err)
	}
	size := 1 + s.aead.Overhead() + len(body)
	if size > MaxBytes {
		return nil, status.Errorf(codes.InvalidArgument, "columns, parts: the request is too long for a ticket (%d bytes of %d); ask for all columns, or mix fewer parts or phases", size, MaxBytes)
	}
	sealed := append(make([]byte, 0, size), ticketVersion)
	return s.aead.Seal(sealed, nil, body, sealed[:1]), nil
}

// Open decrypts sealed bytes and returns the ticket. It returns INVALID_ARGUMENT if they are too long, UNAUTHENTICATED if they are
// not an unaltered ticket of this cache or have expired at now.
func (s Sealer) Open(sealed []byte, now time.Time) (Ticket, error) {
	if len(sealed) > MaxBytes {
		return Ticket{}, status.Errorf(codes.InvalidArgument, "ticket: %d bytes, want at most %d", len(sealed), MaxBytes)
	}
	if len(sealed) < 1 || sealed[0] != ticketVersion {
		return Ticket{}, status.Error(codes.Unauthenticated, "ticket: not a ticket of this cache; ask the head for a new one")
	}
	body, err := s.aead.Open(nil, nil, sealed[1:], sealed[:1])
	if err != nil {
		return Ticket{}, status.Error(codes.Unauthenticated, "ticket: changed, or made under another key; ask the head for a new one")
	}
	var t Ticket
	if err := json.Unmarshal(body, &t); err != nil {
		return Ticket{}, status.Errorf(codes.Unauthenticated, "ticket: %v", err)
	}
	if expires := time.Unix(t.Expires, 0); now.After(expires) {
		return Ticket{}, status.Errorf(codes.Unauthenticated, "ticket: expired at %s; ask the head for a new one", expires.UTC().Format(time.RFC3339))
	}
	return t, nil
}
