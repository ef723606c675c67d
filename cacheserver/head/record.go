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
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// record is the whole plan as data nodes keep it for their head: JSON, compressed. A head that has one needs
// neither catalog nor object store to answer for the rows that nodes hold.
type record struct {
	Pin    json.RawMessage   `json:"pin"`
	Schema []byte            `json:"schema"` // Arrow IPC
	Splits []json.RawMessage `json:"splits"`
	Done   []peer.SplitDone  `json:"done"` // once the cache was Ready: what every split held
}

// encodeRecord makes the record of a plan. done is empty before the cache was Ready.
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

// decodeRecord reads what encodeRecord made.
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

// planOf makes the plan that a record is of. The splits are assigned anew: the number of data nodes may be another.
func (h *Head) planOf(r *record) (*tablePlan, error) {
	p, err := h.cfg.Source.Restore(r.Pin, r.Splits)
	if err != nil {
		return nil, fmt.Errorf("the plan's record: %w", err)
	}
	if p.Schema, err = flight.DeserializeSchema(r.Schema, memory.DefaultAllocator); err != nil {
		return nil, fmt.Errorf("the schema in the plan's record: %w", err)
	}
	return h.newPlan(p)
}
