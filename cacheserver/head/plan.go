// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/order"
	"github.com/kubeflow/datacache/cacheserver/plan"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/cacheserver/wire"
)

// tablePlan is what the head decided: which rows of which snapshot, in which order, on which node.
// It is immutable.
type tablePlan struct {
	fingerprint string // of everything that a node's part depends on
	dataset     wire.Dataset
	pin         iceberg.Pin
	selection   iceberg.Selection
	schema      *arrow.Schema
	splits      []iceberg.Split
	runs        []plan.Run // by node

	encode sync.Once
	whole  []byte // schema, encoded; see encoded
}

// requestFingerprint names what a head was asked to cache, before any snapshot was resolved. Credentials and other
// properties stay out of it.
func requestFingerprint(src iceberg.Source, sel iceberg.Selection) (string, error) {
	src.Properties = nil
	return plan.Fingerprint(struct {
		Source    iceberg.Source
		Selection iceberg.Selection
	}{src, sel})
}

// makePlan pins the table and plans it.
func (h *Head) makePlan(ctx context.Context) (*tablePlan, error) {
	selection := h.cfg.Selection
	if h.cfg.Pin != nil {
		selection.SnapshotID, selection.Ref, selection.AsOf = h.cfg.Pin, "", nil
	}
	table, err := iceberg.Open(ctx, h.cfg.Store, h.cfg.Source, selection)
	if err != nil {
		return nil, err
	}
	splits, err := table.Plan(ctx, func(done, total int) { h.cluster.planning(done, total, time.Now()) })
	if err != nil {
		return nil, err
	}
	return h.newPlan(table.Pin(), table.Schema(), CutSplits(splits, h.cfg.Nodes))
}

// newPlan deals the splits to the nodes and names the result.
func (h *Head) newPlan(pin iceberg.Pin, schema *arrow.Schema, splits []iceberg.Split) (*tablePlan, error) {
	p := &tablePlan{pin: pin, selection: h.cfg.Selection, schema: schema, splits: splits, runs: DealSplits(splits, h.cfg.Nodes)}
	return p, p.name()
}

// name fills in the plan's fingerprints. The dataset's covers what fixes the row indices and nothing else:
// the columns and the number of nodes, and so where row groups are cut, may differ between two caches that index the
// same rows alike.
func (p *tablePlan) name() error {
	type rows struct {
		File     string
		RowGroup int
		Rows     int64
	}
	order := []rows{}
	var cuts []int64
	for i, s := range p.splits {
		if s.First > 0 && len(order) > 0 {
			order[len(order)-1].Rows += s.Rows
			cuts = append(cuts, int64(i), s.First)
			continue
		}
		order = append(order, rows{s.File, s.RowGroup, s.Rows})
	}
	dataset, err := plan.Fingerprint(struct {
		OrderVersion int
		UUID         string
		Snapshot     int64
		Filter       string
		Splits       []rows
	}{orderVersion, p.pin.UUID, p.pin.SnapshotID, p.selection.Filter, order})
	if err != nil {
		return err
	}
	p.dataset = wire.Dataset{TableUUID: p.pin.UUID, Snapshot: p.pin.SnapshotID, Fingerprint: dataset, Filter: p.selection.Filter}
	p.fingerprint, err = plan.Fingerprint(struct {
		Dataset string
		Pin     iceberg.Pin
		Columns []string
		Runs    []plan.Run
		Cuts    []int64
	}{dataset, p.pin, p.selection.Columns, p.runs, cuts})
	return err
}

// orderVersion is the version of the epoch order that row indices are used with.
const orderVersion = 1

// columns turns the names of a request into indices of the served schema; nil, meaning all, stays nil.
func (p *tablePlan) columns(names []string) ([]int, error) {
	if names == nil {
		return nil, nil
	}
	indices := make([]int, len(names))
	for i, name := range names {
		found := p.schema.FieldIndices(name)
		if len(found) == 0 {
			return nil, fmt.Errorf("columns: no column %.64q; there are %s", name, fieldNames(p.schema))
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

// project is the schema of an answer with the given columns; nil means all.
func (p *tablePlan) project(columns []int) *arrow.Schema {
	if columns == nil {
		return p.schema
	}
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = p.schema.Field(c)
	}
	return arrow.NewSchema(fields, nil)
}

// encoded is project's answer as IPC has it. That of all columns, which is what most ask for, is made once.
func (p *tablePlan) encoded(columns []int) []byte {
	if columns != nil {
		return flight.SerializeSchema(p.project(columns), memory.DefaultAllocator)
	}
	p.encode.Do(func() { p.whole = flight.SerializeSchema(p.schema, memory.DefaultAllocator) })
	return p.whole
}

// scanLimit bounds how many runs of an epoch are looked at to find out which nodes hold rows of it.
const scanLimit = 1 << 20

// touched says which nodes hold rows of a rank's share of an epoch. Nodes that were not met within the first
// scanLimit runs of a longer share count as touched: their streams are then empty at worst.
func touched(e order.Epoch, s order.Share, bounds []plan.Bounds) ([]bool, error) {
	out := make([]bool, len(bounds))
	left := 0
	for _, b := range bounds {
		if b.Len() > 0 {
			left++
		}
	}
	cursor, err := order.NewCursor(e, s)
	if err != nil {
		return nil, err
	}
	var runs [1024]order.Run
	for seen := 0; left > 0 && seen < scanLimit; {
		n, passed := cursor.Next(runs[:], math.MaxUint64)
		if passed == 0 {
			return out, nil
		}
		for _, r := range runs[:n] {
			for i, b := range bounds {
				if !out[i] && int64(r.First) < b[1] && int64(r.First+r.Rows) > b[0] {
					out[i] = true
					left--
				}
			}
		}
		seen += n
	}
	for i, b := range bounds {
		out[i] = out[i] || b.Len() > 0
	}
	return out, nil
}
