// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// outline is a plan without its splits, as JSON. Every data node keeps it, and three nodes each part; see assign.Keepers. With an outline and
// all parts, a head can serve the rows that nodes hold without catalog and object store.
type outline struct {
	Dataset protocol.Dataset `json:"dataset"`
	Pin     json.RawMessage  `json:"pin"`
	Columns []string         `json:"columns"`
	Schema  []byte           `json:"schema"` // Arrow IPC
	Parts   []partSum        `json:"parts"`  // by node
	// Loaded are the digests of the parts' loaded rows, by node, once the cache was Ready. The plan's fingerprint does not cover them.
	Loaded [][]byte `json:"loaded,omitempty"`
}

// partSum identifies the splits of one node.
type partSum struct {
	Splits int    `json:"n"`
	Digest []byte `json:"d"` // of their encoding
}

// digestSize is the size of digests and of the hashes of splits.
const digestSize = 16

// digest is the first half of the SHA-256 of data.
func digest(data []byte) []byte {
	sum := sha256.Sum256(data)
	return sum[:digestSize]
}

// fingerprint covers everything that a node's part depends on.
func (o outline) fingerprint() (string, error) {
	o.Loaded = nil
	return fingerprintOf(o)
}

// decodeOutline decodes an outline and checks that it is that of the plan with the given fingerprint.
func decodeOutline(data []byte, plan string) (*outline, error) {
	o := &outline{}
	if err := json.Unmarshal(data, o); err != nil {
		return nil, fmt.Errorf("the plan's outline: %w", err)
	}
	is, err := o.fingerprint()
	if err != nil {
		return nil, err
	}
	if is != plan || len(o.Parts) == 0 || len(o.Loaded) != 0 && len(o.Loaded) != len(o.Parts) {
		return nil, fmt.Errorf("the outline is of plan %s with %d parts and %d digests, want plan %s", is, len(o.Parts), len(o.Loaded), plan)
	}
	return o, nil
}

// splitState is what a head knows of a split: how many rows it must have, and those that a node has loaded.
type splitState struct {
	exact  int64 // the rows that must be loaded; -1 if planning could not count them
	rows   int64 // that were loaded
	hash   [digestSize]byte
	loaded bool // rows and hash are known
}

// encodeLoaded encodes the rows and hashes of a part's splits, nil if they are not all known.
func encodeLoaded(splits []splitState) []byte {
	var out []byte
	for i := range splits {
		if !splits[i].loaded {
			return nil
		}
		out = binary.AppendUvarint(out, uint64(splits[i].rows))
		out = append(out, splits[i].hash[:]...)
	}
	return out
}

// sums are the digests of the parts' loaded rows, all of which must be known.
func (p *tablePlan) sums() ([][]byte, error) {
	sums := make([][]byte, len(p.runs))
	for i, run := range p.runs {
		loaded := encodeLoaded(p.splits[run.First:run.End])
		if loaded == nil && run.Len() > 0 {
			return nil, fmt.Errorf("part %d of the plan: no data node knows the hashes of its rows", i)
		}
		sums[i] = digest(loaded)
	}
	return sums, nil
}

// decodeLoaded sets the rows and hashes of a part's splits, if data are the output of encodeLoaded that has the given digest. It reports
// whether it did.
func decodeLoaded(splits []splitState, data, want []byte) bool {
	if want == nil || !bytes.Equal(digest(data), want) {
		return false
	}
	for i := range splits {
		rows, size := binary.Uvarint(data)
		if size <= 0 || len(data) < size+digestSize {
			return false
		}
		splits[i].rows, splits[i].loaded = int64(rows), true
		copy(splits[i].hash[:], data[size:])
		data = data[size+digestSize:]
	}
	return true
}

// setPart sets a part of the plan, whose splits must be those of the outline, and what is known of the splits as loaded.
func (p *tablePlan) setPart(i int, encoded, loaded []byte) error {
	sum := p.outline.Parts[i]
	if !bytes.Equal(digest(encoded), sum.Digest) {
		return fmt.Errorf("part %d of the plan: other splits than planned", i)
	}
	splits, err := source.DecodeSplits(encoded)
	if err != nil {
		return fmt.Errorf("part %d of the plan: %w", i, err)
	}
	if len(splits) != sum.Splits {
		return fmt.Errorf("part %d of the plan: %d splits, want %d", i, len(splits), sum.Splits)
	}
	p.parts[i] = encoded
	p.describe(i, splits)
	if p.outline.Loaded != nil {
		decodeLoaded(p.splits[p.runs[i].First:p.runs[i].End], loaded, p.outline.Loaded[i])
	}
	return nil
}

// describe sets what is known of the splits of part i before they are loaded.
func (p *tablePlan) describe(i int, splits []source.Split) {
	for j, s := range splits {
		if s.Kept() < 0 {
			p.uncounted++
		}
		p.splits[p.runs[i].First+j] = splitState{exact: s.Kept()}
		p.sizes[i] += s.Bytes
	}
}

// restore returns the plan of an outline, without its parts.
func (o *outline) restore(of source.Source) (*tablePlan, error) {
	planned, err := of.Restore(o.Pin)
	if err != nil {
		return nil, fmt.Errorf("the plan's outline: %w", err)
	}
	if planned.Schema, err = flight.DeserializeSchema(o.Schema, memory.DefaultAllocator); err != nil {
		return nil, fmt.Errorf("the schema in the plan's outline: %w", err)
	}
	p := &tablePlan{Plan: *planned, dataset: o.Dataset, outline: *o, parts: make([][]byte, len(o.Parts)), runs: make([]assign.Range, len(o.Parts))}
	end := 0
	for i, part := range o.Parts {
		if part.Splits < 0 || part.Splits > MostSplits-end {
			return nil, fmt.Errorf("the plan's outline: part %d has %d splits", i, part.Splits)
		}
		p.runs[i] = assign.Range{First: end, End: end + part.Splits}
		end += part.Splits
	}
	p.splits, p.sizes = make([]splitState, end), make([]int64, len(o.Parts))
	p.fingerprint, err = o.fingerprint()
	return p, err
}
