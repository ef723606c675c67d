// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// Audit is the comparison of everything that a snapshot's metadata states about its rows with the rows themselves.
type Audit struct {
	Pin         Pin           `json:"pin"`
	Files       []AuditedFile `json:"files"`
	DeleteFiles int64         `json:"delete_files"`
	Differences []Difference  `json:"differences"`
}

// AuditedFile is what a data file was found to hold, before deletes.
type AuditedFile struct {
	File    string          `json:"file"`
	Rows    int64           `json:"rows"`
	Columns []AuditedColumn `json:"columns"`
}

// AuditedColumn is a column of a data file, or a field of its structs.
type AuditedColumn struct {
	Name  string  `json:"name"` // with those of the structs that contain it, joined by dots
	Nulls int64   `json:"nulls"`
	NaNs  int64   `json:"nans"`
	Min   *string `json:"min,omitempty"` // of the values that are neither null nor NaN
	Max   *string `json:"max,omitempty"`
}

// Difference is a number or a bound that is stated about rows, and that they contradict.
type Difference struct {
	File   string `json:"file"`             // that it is stated about
	By     string `json:"by"`               // who states it: summary, manifest list, manifest, footer, row group N
	Column string `json:"column,omitempty"` // "": the file or the snapshot as a whole
	What   string `json:"what"`
	Says   string `json:"says"`
	Has    string `json:"has"`
	Hides  bool   `json:"hides_rows"` // rows may be missing, or may be left out by a filter that relies on it
}

// String says in one line what differs.
func (d Difference) String() string {
	of := ""
	if d.Column != "" {
		of = fmt.Sprintf(" column %q", d.Column)
	}
	return fmt.Sprintf("%s%s: the %s says %s %s, the rows have %s", d.File, of, d.By, d.What, d.Says, d.Has)
}

// Audit reads every live data file of the snapshot, the selected columns of all rows, and compares them with the summary, the manifest
// list, the manifests and the footers. The filter is ignored. It calls progress after each file; calls are never concurrent.
func (t *Table) Audit(ctx context.Context, progress func(done, total int)) (*Audit, error) {
	a := &Audit{Pin: t.pin, Files: []AuditedFile{}, Differences: []Difference{}}
	files, err := t.auditManifests(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	slices.SortFunc(files, func(a, b *fileAudit) int { return strings.Compare(a.data.path, b.data.path) })
	a.Files = make([]AuditedFile, len(files))
	var mu sync.Mutex
	done := 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	differences := make([][]Difference, len(files))
	for i, f := range files {
		group.Go(func() error {
			if err := f.read(ctx); err != nil {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				f.add(Difference{By: "file", What: "content", Says: "-", Has: err.Error(), Hides: true})
			}
			a.Files[i], differences[i] = f.found, f.differences
			mu.Lock()
			defer mu.Unlock()
			done++
			progress(done, len(files))
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	a.Differences = append(a.Differences, slices.Concat(differences...)...)
	return a, nil
}

// fileAudit compares one data file with its rows.
type fileAudit struct {
	table       *Table
	file        ice.DataFile // with what its manifest states
	data        foundFile
	footer      *parquet.Footer
	fields      []column.Path // that the file has and that filters can compare
	names       []string      // of fields
	found       AuditedFile
	differences []Difference
}

func (f *fileAudit) add(d Difference) {
	d.File = f.found.File
	f.differences = append(f.differences, d)
}

// read decodes the file.
func (f *fileAudit) read(ctx context.Context) (err error) {
	defer parquet.RecoverError(&err)
	d := f.file
	if f.data.problem != nil {
		return f.data.problem
	}
	file, err := f.table.Store.Open(ctx, d.FilePath())
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for reading: closing can't lose data
	if file.Size() != d.FileSizeBytes() {
		f.add(Difference{By: "manifest", What: "bytes", Says: fmt.Sprint(d.FileSizeBytes()), Has: fmt.Sprint(file.Size())})
	}
	if f.footer, err = parquet.ReadFooter(ctx, file, f.table.Names); err != nil {
		return err
	}
	columns, err := f.table.columnsOf(f.footer, f.data.dataFile)
	if err != nil {
		return err
	}
	for i, field := range f.table.Fields {
		f.fields, f.names = f.comparable(column.Path{Column: i, Field: field}, field.Name)
	}
	all := make([]predicate.Observed, len(f.fields))
	for g := range f.footer.Groups() {
		if f.footer.Rows(g) == 0 {
			continue
		}
		seen, err := f.readGroup(ctx, file, columns, g)
		if err != nil {
			return fmt.Errorf("row group %d: %w", g, err)
		}
		for i := range seen {
			f.compare(fmt.Sprintf("row group %d", g), i, seen[i], f.footer.Bounds(g)(f.fields[i].Field))
			all[i].Merge(seen[i])
		}
		f.found.Rows += f.footer.Rows(g) // which were decoded: any other number is an error
	}
	return f.conclude(all)
}

// readGroup decodes a row group and returns what it has of each of the fields.
func (f *fileAudit) readGroup(ctx context.Context, file *objstore.File, columns *scan.Columns, g int) ([]predicate.Observed, error) {
	if err := columns.Projection.Check(g); err != nil {
		return nil, err
	}
	section := f.footer.Whole(g)
	if err := columns.Projection.Prefetch(ctx, file, section); err != nil {
		return nil, err
	}
	batch := parquet.BatchRows(columns.Projection.Weight(g, len(f.table.Fields)), f.footer.Rows(g))
	rows, err := parquet.NewRowReader(ctx, columns.Projection, file, section, batch, f.table.Mem)
	if err != nil {
		return nil, err
	}
	seen := make([]predicate.Observed, len(f.fields))
	return seen, rows.Each(ctx, func(columns []arrow.Array) error {
		for i, p := range f.fields {
			seen[i].Add(p.At(columns))
		}
		return nil
	})
}

// comparable appends to the file's fields those of p that filters can compare: p itself, or the fields of a struct.
func (f *fileAudit) comparable(p column.Path, name string) ([]column.Path, []string) {
	if p.Field.Type.ID() == arrow.STRUCT {
		for i, kid := range p.Field.Kids {
			inner := column.Path{Column: p.Column, Kids: append(slices.Clone(p.Kids), i), Field: kid}
			f.fields, f.names = f.comparable(inner, name+"."+kid.Name)
		}
		return f.fields, f.names
	}
	if !p.Field.Comparable() || !f.footer.Has(p.Field.ID) {
		return f.fields, f.names
	}
	return append(f.fields, p), append(f.names, name)
}

// compare adds what the values of a column contradict.
func (f *fileAudit) compare(by string, at int, seen predicate.Observed, stated predicate.Bounds) {
	for _, c := range seen.Contradicts(stated, false) {
		f.add(Difference{By: by, Column: f.names[at], What: c.What, Says: c.Says, Has: c.Has, Hides: c.Hides})
	}
}

// conclude compares the whole file with its manifest.
func (f *fileAudit) conclude(all []predicate.Observed) error {
	d := f.file
	if d.Count() != f.found.Rows {
		f.add(Difference{By: "manifest", What: "rows", Says: fmt.Sprint(d.Count()), Has: fmt.Sprint(f.found.Rows), Hides: true})
	}
	stated := metricsOf(d)
	for i, p := range f.fields {
		f.compare("manifest", i, all[i], stated(p.Field))
		if from, ok := f.data.partition.value(p.Field.ID); ok {
			if err := f.comparePartition(i, from, all[i]); err != nil {
				return err
			}
		}
		if nans, ok := d.NaNValueCounts()[p.Field.ID]; ok && nans != all[i].NaNs {
			f.add(Difference{By: "manifest", Column: f.names[i], What: "NaNs", Says: fmt.Sprint(nans), Has: fmt.Sprint(all[i].NaNs), Hides: nans == 0})
		}
		if values, ok := d.ValueCounts()[p.Field.ID]; ok && values != all[i].Rows {
			f.add(Difference{By: "manifest", Column: f.names[i], What: "values", Says: fmt.Sprint(values), Has: fmt.Sprint(all[i].Rows)})
		}
		found := AuditedColumn{Name: f.names[i], Nulls: all[i].Nulls, NaNs: all[i].NaNs}
		if all[i].Some {
			found.Min, found.Max = new(all[i].Min.String()), new(all[i].Max.String())
		}
		f.found.Columns = append(f.found.Columns, found)
	}
	return nil
}

// comparePartition compares a column with the value of its identity partition.
func (f *fileAudit) comparePartition(at int, from any, seen predicate.Observed) error {
	says, differs := "null", seen.Nulls < seen.Rows
	if from != nil {
		v, err := partitionValue(from, f.fields[at].Field.Type)
		if err != nil {
			return err
		}
		same := !seen.Some || seen.Min.Compare(v) == 0 && seen.Max.Compare(v) == 0
		says, differs = v.String(), seen.Nulls > 0 || seen.NaNs > 0 && v.Compare(v) == 0 || !same
	}
	if differs {
		has := fmt.Sprintf("%d nulls", seen.Nulls)
		if seen.Some {
			has = fmt.Sprintf("%s to %s and %s", seen.Min, seen.Max, has)
		}
		f.add(Difference{By: "manifest", Column: f.names[at], What: "partition value", Says: says, Has: has, Hides: true})
	}
	return nil
}
