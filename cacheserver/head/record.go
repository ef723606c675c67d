// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// record is the whole plan in the form that data nodes store for their head: compressed JSON. A head with the record can serve the
// rows that nodes hold without catalog and object store.
type record struct {
	Pin    json.RawMessage   `json:"pin"`
	Schema []byte            `json:"schema"` // Arrow IPC
	Splits []json.RawMessage `json:"splits"`
	Done   []peer.SplitDone  `json:"done"` // if the cache was Ready: the hash of every split
}

// encodeRecord encodes the record of a plan. done is empty if the cache was not Ready yet.
func encodeRecord(p *tablePlan, done []peer.SplitDone) ([]byte, error) {
	text, err := json.Marshal(record{Pin: p.Version.Pin, Schema: p.schemaBytes(nil), Splits: p.encoded, Done: done})
	if err != nil {
		return nil, fmt.Errorf("encode the plan's record: %w", err)
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress the plan's record: %w", err)
	}
	_, err = z.Write(text)
	if err := errors.Join(err, z.Close()); err != nil {
		return nil, fmt.Errorf("compress the plan's record: %w", err)
	}
	return out.Bytes(), nil
}

// decodeRecord decodes the output of encodeRecord.
func decodeRecord(data []byte) (*record, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the plan's record: %w", err)
	}
	r := &record{}
	if err := json.NewDecoder(io.LimitReader(z, transport.MaxMessage)).Decode(r); err != nil {
		return nil, fmt.Errorf("the plan's record: %w", err)
	}
	if len(r.Done) != 0 && len(r.Done) != len(r.Splits) {
		return nil, fmt.Errorf("the plan's record has hashes of %d splits, and %d splits", len(r.Done), len(r.Splits))
	}
	return r, nil
}

// plan restores the plan of a source. The splits are assigned anew, since the number of data nodes may differ.
func (r *record) plan(of source.Source, nodes int) (*tablePlan, error) {
	p, err := of.Restore(r.Pin)
	if err == nil {
		p.Splits, err = source.DecodeSplits(r.Splits)
	}
	if err != nil {
		return nil, fmt.Errorf("the plan's record: %w", err)
	}
	if p.Schema, err = flight.DeserializeSchema(r.Schema, memory.DefaultAllocator); err != nil {
		return nil, fmt.Errorf("the schema in the plan's record: %w", err)
	}
	return newPlan(p, nodes)
}
