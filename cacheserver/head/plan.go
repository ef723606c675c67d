// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// tablePlan is the head's plan: which rows of which snapshot, in which order, on which node. It is immutable.
type tablePlan struct {
	source.Plan
	fingerprint string // covers everything that a node's part depends on
	dataset     protocol.Dataset
	encoded     []json.RawMessage // the splits' JSON
	runs        []assign.Range    // by node

	encodeSchema sync.Once
	wholeSchema  []byte // encoded schema of all columns; see schemaBytes
}

// newPlan assigns the splits to the nodes and computes the fingerprints.
func newPlan(planned *source.Plan, nodes int) (*tablePlan, error) {
	p := &tablePlan{Plan: *planned, runs: DealSplits(planned.Splits, nodes), encoded: make([]json.RawMessage, len(planned.Splits))}
	for i, s := range p.Splits {
		var err error
		if p.encoded[i], err = json.Marshal(s); err != nil {
			return nil, fmt.Errorf("encode %s: %w", s, err)
		}
	}
	return p, p.name()
}

// name sets the plan's fingerprints. The dataset's covers exactly what determines the row indices, and so the versions of the files:
// the columns and the number of nodes, and so where row groups are cut, may differ between two caches with the same row indices.
func (p *tablePlan) name() error {
	type rows struct {
		File     string
		RowGroup int
		Rows     int64
		Version  string `json:",omitempty"`
	}
	order := []rows{}
	var cuts []int64
	for i, s := range p.Splits {
		if s.First > 0 && len(order) > 0 {
			order[len(order)-1].Rows += s.Rows
			cuts = append(cuts, int64(i), s.First)
			continue
		}
		order = append(order, rows{s.File, s.RowGroup, s.Rows, s.Version})
	}
	dataset, err := fingerprintOf(struct {
		OrderVersion int
		UUID         string
		Snapshot     int64
		Filter       string
		Splits       []rows
	}{orderVersion, p.Identity.UUID, p.Identity.Snapshot, p.Identity.Filter, order})
	if err != nil {
		return err
	}
	p.dataset = protocol.Dataset{TableUUID: p.Identity.UUID, Snapshot: p.Identity.Snapshot, Fingerprint: dataset, Filter: p.Identity.Filter}
	p.fingerprint, err = fingerprintOf(struct {
		Dataset string
		Pin     json.RawMessage
		Columns []string
		Runs    []assign.Range
		Cuts    []int64
	}{dataset, p.Version.Pin, p.Identity.Columns, p.runs, cuts})
	return err
}

// orderVersion is the version of the epoch order used with row indices.
const orderVersion = 1

// columns converts the column names of a request to indices in the served schema; nil, meaning all, stays nil.
func (p *tablePlan) columns(names []string) ([]int, error) {
	if names == nil {
		return nil, nil
	}
	indices := make([]int, len(names))
	for i, name := range names {
		found := p.Schema.FieldIndices(name)
		if len(found) == 0 {
			return nil, fmt.Errorf("columns: no column %.64q; there are %s", name, fieldNames(p.Schema))
		}
		indices[i] = found[0]
	}
	return indices, nil
}

func fieldNames(schema *arrow.Schema) []string {
	names := make([]string, schema.NumFields())
	for i, f := range schema.Fields() {
		names[i] = f.Name
	}
	return names
}

// project returns the schema of a response with the given columns; nil means all.
func (p *tablePlan) project(columns []int) *arrow.Schema {
	if columns == nil {
		return p.Schema
	}
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = p.Schema.Field(c)
	}
	return arrow.NewSchema(fields, nil)
}

// schemaBytes returns the encoded result of project. For all columns, the usual request, it is made once.
func (p *tablePlan) schemaBytes(columns []int) []byte {
	if columns != nil {
		return flight.SerializeSchema(p.project(columns), memory.DefaultAllocator)
	}
	p.encodeSchema.Do(func() { p.wholeSchema = flight.SerializeSchema(p.Schema, memory.DefaultAllocator) })
	return p.wholeSchema
}
