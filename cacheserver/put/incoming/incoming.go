// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package incoming checks what clients send to put a dataset before anything is made of it: the request that begins a put, and the schema of
// its rows.
package incoming

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/exchange"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

const (
	// idPrefix distinguishes the id of a put from the fingerprint of a table.
	idPrefix = "put-"
	// mostLabel is the maximum length of a recipe and of a source.
	mostLabel = 256
	// mostTTL is the maximum of ttl_s, a year: more than about 292 years don't fit in a time.Duration.
	mostTTL = 365 * 24 * 60 * 60
	// mostBytes is the maximum of bytes, an exbibyte: a put with copies takes twice as many.
	mostBytes = 1 << 60
)

// New returns the put that a client asks to begin, with a new id, for a cache of some data nodes, or what is wrong with the request.
func New(b protocol.Begin, nodes int) (of peer.Put, err error) {
	of = peer.Put{Name: b.Name, Mode: b.Mode, Parts: b.Parts, Nodes: nodes, Schema: message(b.Schema), Keep: b.Keep, Recipe: b.Recipe, Source: b.Source, TTL: b.TTL}
	switch err := protocol.ValidDataset(b.Name); {
	case err != nil:
		return of, fmt.Errorf("name: %w", err)
	case b.Mode == "":
		of.Mode = protocol.PutCreate
	case b.Mode != protocol.PutCreate && b.Mode != protocol.PutReplace:
		return of, fmt.Errorf("mode: %.64q, want %q or %q", b.Mode, protocol.PutCreate, protocol.PutReplace)
	}
	switch {
	case b.Parts < 1 || b.Parts > protocol.MostParts:
		return of, fmt.Errorf("parts: %d, want 1 to %d", b.Parts, protocol.MostParts)
	case b.Bytes < 0 || b.Bytes > mostBytes:
		return of, fmt.Errorf("bytes: %d, want 0 to %d", b.Bytes, int64(mostBytes))
	case b.TTL < 0 || b.TTL > mostTTL:
		return of, fmt.Errorf("ttl_s: %d, want 0 to %d (a year)", b.TTL, mostTTL)
	case len(b.Recipe) > mostLabel || len(b.Source) > mostLabel:
		return of, fmt.Errorf("recipe, source: %d and %d bytes, want at most %d", len(b.Recipe), len(b.Source), mostLabel)
	}
	if err := protocol.ValidKeep(b.Keep); err != nil {
		return of, fmt.Errorf("keep: %w", err)
	}
	if b.Keep == protocol.KeepReplica && nodes < 2 {
		return of, fmt.Errorf("keep: %q, and this cache has one data node, so that there is no other one for copies: give it two, or put with %q or %q", b.Keep, protocol.KeepDisk, protocol.KeepMemory)
	}
	layout, err := Layout(of.Schema)
	if err != nil {
		return of, fmt.Errorf("schema: %w", err)
	}
	of.Memory, _ = Memory(of.Schema) // Layout has checked it
	if layout.Schema().NumFields() == 0 {
		return of, fmt.Errorf("schema: it has no columns")
	}
	seen := map[string]bool{}
	for _, f := range layout.Schema().Fields() {
		if seen[f.Name] {
			return of, fmt.Errorf("schema: column %.64q is there twice", f.Name)
		}
		seen[f.Name] = true
		of.Columns = append(of.Columns, [3]string{f.Name, f.Type.String(), strconv.FormatBool(f.Nullable)})
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	of.ID = idPrefix + hex.EncodeToString(id)
	return of, nil
}

// Memory of a schema once it is parsed, measured: of a field with its array's layout, and of a byte of text, which several strings have.
const (
	fieldMemory = 2 << 10
	textMemory  = 3
)

// message is an Arrow IPC message without the prefix that it has in a stream.
func message(framed []byte) []byte {
	if rest, ok := bytes.CutPrefix(framed, []byte{0xff, 0xff, 0xff, 0xff}); ok && len(rest) >= 4 {
		return rest[4:]
	}
	return framed
}

// Memory is about how much memory it takes to parse a foreign schema, an Arrow IPC message, and to keep its layout.
func Memory(schema []byte) (int64, error) {
	schema = message(schema)
	size, err := exchange.CheckSchema(exchange.Message{Header: schema})
	return int64(size.Fields)*fieldMemory + size.Text*textMemory + int64(len(schema)), err // fits: 10,000 fields and 4 MiB
}

// Layout returns the layout of the rows of a foreign schema, an Arrow IPC message.
func Layout(schema []byte) (*rows.Layout, error) {
	if _, err := Memory(schema); err != nil {
		return nil, err
	}
	parsed, err := rows.ParseSchema(schema)
	if err != nil {
		return nil, err
	}
	return rows.NewLayout(parsed)
}
