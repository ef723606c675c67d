// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// tablePlan is the head's plan: which rows of which snapshot, in which order, on which node. It is immutable, but for splits and Loaded of
// outline. It holds about 170 bytes for each split.
type tablePlan struct {
	source.Plan        // without Splits
	fingerprint string // covers everything that a node's part depends on
	dataset     protocol.Dataset
	outline     outline
	parts       [][]byte       // encoded splits, by node
	runs        []assign.Range // by node
	sizes       []int64        // estimates of the splits' bytes in memory, by node
	uncounted   int            // number of splits whose rows are not known before they are decoded
	splits      []splitState   // protected by the cluster's mu, once the cluster has the plan

	encodeSchema sync.Once
	wholeSchema  []byte // encoded schema of all columns; see schemaBytes
}

// newPlan assigns the splits to the nodes and computes the fingerprints.
func newPlan(planned *source.Plan, nodes int) (*tablePlan, error) {
	p := &tablePlan{Plan: *planned, runs: DealSplits(planned.Splits, nodes), parts: make([][]byte, nodes), splits: make([]splitState, len(planned.Splits))}
	p.sizes = make([]int64, nodes)
	p.Splits = nil
	p.outline = outline{Pin: p.Version.Pin, Columns: p.Identity.Columns, Schema: p.schemaBytes(nil), Parts: make([]partSum, nodes)}
	for i, run := range p.runs {
		p.parts[i] = source.EncodeSplits(planned.Splits[run.First:run.End])
		p.describe(i, planned.Splits[run.First:run.End])
		p.outline.Parts[i] = partSum{Splits: run.Len(), Digest: digest(p.parts[i])}
	}
	rows, err := rowsFingerprint(p.Identity, planned.Splits)
	if err != nil {
		return nil, err
	}
	p.dataset = protocol.Dataset{TableUUID: p.Identity.UUID, Snapshot: p.Identity.Snapshot, Fingerprint: rows, Filter: p.Identity.Filter}
	p.outline.Dataset = p.dataset
	p.fingerprint, err = p.outline.fingerprint()
	return p, err
}

// rowsFingerprint is the fingerprint of a dataset. It covers exactly what determines the row indices, and so the versions of the files: the
// columns and the number of nodes, and so where row groups are cut, may differ between two caches with the same row indices. It is the
// fingerprint of one JSON object, which is hashed row group by row group.
func rowsFingerprint(of source.Identity, splits []source.Split) (string, error) {
	type rowGroup struct {
		File     string
		RowGroup int
		Rows     int64
		Version  string `json:",omitempty"`
	}
	about, err := json.Marshal(struct {
		OrderVersion int
		UUID         string
		Snapshot     int64
		Filter       string
	}{orderVersion, of.UUID, of.Snapshot, of.Filter})
	if err != nil {
		return "", fmt.Errorf("fingerprint the dataset: %w", err)
	}
	digest := sha256.New()
	digest.Write(about[:len(about)-1]) // without the last brace
	digest.Write([]byte(`,"Splits":[`))
	for i := 0; i < len(splits); {
		s := splits[i]
		group := rowGroup{s.File, s.RowGroup, s.Rows, s.Version}
		first := i
		for i++; i < len(splits) && splits[i].First > 0; i++ {
			group.Rows += splits[i].Rows
		}
		text, err := json.Marshal(group)
		if err != nil {
			return "", fmt.Errorf("fingerprint %s: %w", s, err)
		}
		if first > 0 {
			digest.Write([]byte(","))
		}
		digest.Write(text)
	}
	digest.Write([]byte("]}"))
	return hex.EncodeToString(digest.Sum(nil)[:digestSize]), nil
}

// split decodes one split of the plan, for messages.
func (p *tablePlan) split(i int) (source.Split, error) {
	node := sort.Search(len(p.runs), func(n int) bool { return p.runs[n].End > i })
	splits, err := source.DecodeSplits(p.parts[node])
	if err != nil {
		return source.Split{}, err
	}
	return splits[i-p.runs[node].First], nil
}

// orderVersion is the version of the epoch order used with row indices.
const orderVersion = 1

// columns converts the column names of a request to indices in the served schema; nil, meaning all, stays nil. length(NAME) selects
// the lengths of a column, unless a column has that very name; its index is the column's index plus the number of columns.
func (p *tablePlan) columns(names []string) ([]int, error) {
	if names == nil {
		return nil, nil
	}
	indices := make([]int, len(names))
	for i, name := range names {
		found := p.Schema.FieldIndices(name)
		if of, ok := lengthOf(name); ok && len(found) == 0 {
			if found = p.Schema.FieldIndices(of); len(found) > 0 {
				if dt := p.Schema.Field(found[0]).Type; !rows.HasLength(dt) {
					return nil, fmt.Errorf("columns: %.64q: column %.64q is %s, want a list, a string or binary", name, of, dt)
				}
				found[0] += p.Schema.NumFields()
			}
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("columns: no column %.64q; there are %s", name, fieldNames(p.Schema))
		}
		indices[i] = found[0]
	}
	return indices, nil
}

// lengthOf returns NAME of length(NAME).
func lengthOf(name string) (column string, ok bool) {
	of, ok := strings.CutPrefix(name, "length(")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(of, ")")
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
		fields[i] = p.Schema.Field(c % p.Schema.NumFields())
		if c >= p.Schema.NumFields() {
			fields[i] = rows.LengthField(fields[i].Name)
		}
	}
	metadata := p.Schema.Metadata()
	return arrow.NewSchema(fields, &metadata)
}

// schemaBytes returns the encoded result of project. For all columns, the usual request, it is made once.
func (p *tablePlan) schemaBytes(columns []int) []byte {
	if columns != nil {
		return flight.SerializeSchema(p.project(columns), memory.DefaultAllocator)
	}
	p.encodeSchema.Do(func() { p.wholeSchema = flight.SerializeSchema(p.Schema, memory.DefaultAllocator) })
	return p.wholeSchema
}
