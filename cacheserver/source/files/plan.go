// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/hub"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// planner plans one listing.
type planner struct {
	source *Source
	files  []file
	table  *table
	union  union
	known  int // number of shapes whose columns are in union
	// metadata is that of the schema: the first file's features.
	metadata arrow.Metadata

	mu     sync.Mutex
	shapes map[string]*shape
}

// plan plans the files of a listing. It reads the footers once if all files have the columns of the first one, otherwise twice: the
// columns of the table are known only after the first time.
func (s *Source) plan(ctx context.Context, found *listing, by *source.Planning) (*source.Plan, error) {
	pin := newPin(s.Location, found.roots, found.files)
	if s.Pinned != nil && *s.Pinned != pin.Snapshot() {
		return nil, fmt.Errorf("plan: %s: files were added, removed or overwritten since this cache was planned: it holds version %d, now there is version %d with %d files: make a new cache", s, *s.Pinned, pin.Snapshot(), pin.Files)
	}
	p := &planner{source: s, files: found.files, table: newTable(s.Store, pin), shapes: map[string]*shape{}}
	first, err := p.table.Footer(ctx, p.files[0].URI, -1)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	p.shapeOf(0, first)
	if features := first.Features(); features != "" {
		p.metadata = arrow.MetadataFrom(map[string]string{parquet.FeaturesKey: features})
	}
	partitions, err := p.partitions()
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	var splits []source.Split
	var wrong error // why the selection does not fit the columns seen so far; files read later may have the missing ones
	for p.known < len(p.shapes) {
		if wrong = p.choose(partitions); wrong != nil {
			p.table.Fields, p.table.Filter, p.table.Compared = nil, nil, nil
		}
		if splits, err = p.table.Plan(ctx, scan.Files{N: len(p.files), At: p.file}, by); err != nil {
			return nil, err
		}
	}
	if wrong != nil {
		return nil, fmt.Errorf("plan: %w", wrong)
	}
	plan, err := s.planOf(pin)
	if err != nil {
		return nil, err
	}
	plan.Schema, plan.Splits = p.table.Served, splits
	return plan, nil
}

// partitions returns the columns of folder names.
func (p *planner) partitions() ([]arrow.Field, error) {
	location := p.source.Location
	onHub := slices.ContainsFunc(location.URIs, hub.IsAddress) // datasets makes no columns of folder names either
	if onHub && len(location.Types) > 0 {
		return nil, errors.New("partition types: the folders of data sets on a hub are no columns: leave the types out")
	}
	if location.Plain || onHub {
		return nil, nil
	}
	return partitionFields(p.files, location.Types)
}

// choose sets the columns of the table to those of all shapes that are known, and of folder names.
func (p *planner) choose(partitions []arrow.Field) error {
	p.union, p.known = unionOf(slices.Collect(maps.Values(p.shapes))), len(p.shapes)
	for _, s := range p.shapes {
		s.known = true
	}
	if err := p.union.add(partitions); err != nil {
		return err
	}
	if err := p.problem(); err != nil {
		return err
	}
	pin := p.table.pin
	pin.Partitions = nil
	for _, f := range partitions {
		pin.Partitions = append(pin.Partitions, f.Name)
	}
	schema := arrow.NewSchema(p.union.fields, &p.metadata)
	if err := pin.setSchema(schema); err != nil {
		return err
	}
	return p.table.choose(schema, pin.Partitions, p.source.Selection)
}

// problem returns the problem of a column that is selected.
func (p *planner) problem() error {
	for _, name := range slices.Sorted(maps.Keys(p.union.problems)) {
		if selected := p.source.Selection.Columns; len(selected) > 0 && !slices.Contains(selected, name) {
			continue
		}
		return fmt.Errorf("column %q: %w: leave the column out, columns that can be read are %s", name, p.union.problems[name], scan.Listed(column.FieldsOf(p.union.fields)))
	}
	return nil
}

// file describes a data file for planning.
func (p *planner) file(i int) *scan.File {
	f, err := p.table.file(p.files[i].URI)
	if err != nil { // can't happen: partitionFields has read all folder names
		return &scan.File{Split: source.Split{File: p.files[i].URI, FileSize: -1}, Rows: -1, Columns: func(*parquet.Footer) (*scan.Columns, error) { return nil, err }}
	}
	f.Split.Version = p.files[i].Version
	columns := f.Columns
	f.Columns = func(footer *parquet.Footer) (*scan.Columns, error) {
		if err := p.check(i, footer); err != nil {
			return nil, err
		}
		if !p.shapeOf(i, footer) {
			return p.unread(footer)
		}
		return columns(footer)
	}
	return f
}

// check returns an error if a file is not the one that was listed.
func (p *planner) check(i int, f *parquet.Footer) error {
	listed := p.files[i]
	if f.Size != listed.Size || listed.Version != "" && f.Version != "" && f.Version != listed.Version {
		return fmt.Errorf("data file %s: %w: it had %d bytes and version %s, and has %d and %s now", f.URI, errReplaced, listed.Size, listed.Version, f.Size, f.Version)
	}
	return nil
}

// shapeOf records the shape of a file. It returns false if its columns are not in the union yet.
func (p *planner) shapeOf(i int, f *parquet.Footer) bool {
	columns := f.Columns()
	key := keyOf(columns)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shapes[key]
	if s == nil {
		s = &shape{uri: f.URI, first: i, columns: columns}
		p.shapes[key] = s
	}
	if i < s.first {
		s.first, s.uri = i, f.URI
	}
	return s.known
}

// unread is how a file is planned whose columns are not in the union yet, in a plan that is discarded: as if it had none.
func (p *planner) unread(f *parquet.Footer) (*scan.Columns, error) {
	fields := slices.Clone(p.table.Fields)
	for i := range fields {
		fields[i].Required = false
	}
	projection, err := parquet.NewProjection(f.Named(nil), fields, func(column.Field) (*column.Value, error) { return nil, nil })
	return &scan.Columns{Projection: projection}, err
}
