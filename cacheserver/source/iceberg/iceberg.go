// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package iceberg finds the files and rows of one snapshot of an Iceberg table: catalog, metadata, manifests, partitions, deletes.
//
// Open pins one snapshot of a table. Plan lists its splits, one for each Parquet row group, in an order that depends only on the
// snapshot and the filter. Columns are found by field id through all schemas that the table ever had; rows are removed by positional
// deletes, deletion vectors and equality deletes. iceberg-go reads metadata and manifests, and package scan the data files.
package iceberg

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// Table is one snapshot of an Iceberg table with the columns and the filter of a Selection. It is safe for concurrent use and need not
// be closed. Open makes Tables.
type Table struct {
	*scan.Table // reads its files
	table       *table.Table
	pin         Pin
	scan        *table.Scan
	schema      *ice.Schema // of the snapshot
	whole       *ice.Schema // schema and the columns of row lineage
	trusted     bool        // whether totals and counts are left unchecked (Selection.TrustManifests)
	properties  ice.Properties
	defaults    defaults
	identity    identityFields
	plan        *scan.Lazy[*filePlan]
	manifests   atomic.Pointer[map[string]ice.ManifestFile] // manifests of the snapshot, set by planning
	deleted     *deleteReader
}

// Pin identifies what Open selected, so that another process can open the same with OpenPinned. It is plain data.
type Pin struct {
	MetadataLocation string `json:"metadata_location"`
	UUID             string `json:"uuid"`
	// SnapshotID is valid only if HasSnapshot is set: a new table has no snapshot and no rows.
	SnapshotID  int64 `json:"snapshot_id"`
	HasSnapshot bool  `json:"has_snapshot"`
	SchemaID    int   `json:"schema_id"`
	// FormatVersion is 1, 2 or 3.
	FormatVersion int `json:"format_version"`
}

// Open opens the table at src and pins the snapshot that sel selects. It reads the metadata file and no data.
func Open(ctx context.Context, store *objstore.Store, src Location, sel Selection) (*Table, error) {
	if err := src.validate(); err != nil {
		return nil, fmt.Errorf("open table: %w", err)
	}
	at, err := locate(ctx, store, src)
	if err != nil {
		return nil, fmt.Errorf("open table %s: %w", src, err)
	}
	return open(ctx, at, src, sel)
}

// OpenPinned opens what another Open of the same source and selection pinned; if that is impossible, the error says what has changed.
func OpenPinned(ctx context.Context, store *objstore.Store, src Location, pin Pin, sel Selection) (*Table, error) {
	return openPinned(ctx, store, src, pin, sel)
}

// openPinned opens what was pinned by one of several selections.
func openPinned(ctx context.Context, store *objstore.Store, src Location, pin Pin, selections ...Selection) (*Table, error) {
	if err := src.validate(); err != nil {
		return nil, fmt.Errorf("open pinned table: %w", err)
	}
	if pin.MetadataLocation == "" {
		return nil, fmt.Errorf("open pinned table %s: the pin names no metadata file", src)
	}
	at := metadataFile{store: store, metadata: pin.MetadataLocation}
	if src.CatalogURI != "" { // to get the catalog's credentials
		vended, err := fromCatalog(ctx, store, src)
		if err != nil {
			return nil, fmt.Errorf("open pinned table %s: %w", src, err)
		}
		at.store = vended.store
	}
	t, err := read(ctx, at, src)
	if err != nil {
		return nil, err
	}
	var first error
	for _, sel := range selections {
		err := t.choose(sel)
		switch {
		case err != nil:
			err = fmt.Errorf("open table %s: %w", src, err)
		case t.pin != pin:
			err = fmt.Errorf("open pinned table %s: %s now holds %+v, pinned was %+v: start the cache anew", src, pin.MetadataLocation, t.pin, pin)
		default:
			return t, nil
		}
		first = cmp.Or(first, err)
	}
	return nil, first
}

func open(ctx context.Context, at metadataFile, src Location, sel Selection) (*Table, error) {
	t, err := read(ctx, at, src)
	if err != nil {
		return nil, err
	}
	if err := t.choose(sel); err != nil {
		return nil, fmt.Errorf("open table %s: %w", src, err)
	}
	return t, nil
}

// read reads a table's metadata.
func read(ctx context.Context, at metadataFile, src Location) (*Table, error) {
	t := &Table{Table: scan.New(at.store), plan: scan.NewLazy[*filePlan]()}
	t.File, t.deleted = t.file, newDeleteReader(t)
	if err := t.load(ctx, at.metadata); err != nil {
		name := src.String()
		if name != at.metadata {
			name += ": read " + at.metadata
		}
		return nil, fmt.Errorf("open table %s, which must be an Iceberg metadata file: %w", name, err)
	}
	return t, nil
}

// load reads the metadata file.
func (t *Table) load(ctx context.Context, metadata string) (err error) {
	defer parquet.RecoverError(&err)
	text, err := readMetadata(ctx, t.Store, metadata)
	if err != nil {
		return err
	}
	if t.defaults, text, err = takeDefaults(text); err != nil {
		return err
	}
	parsed, err := table.ParseMetadataBytes(text)
	if err != nil {
		return err
	}
	t.table = table.New(table.Identifier{metadata}, parsed, metadata, t.io, nil)
	t.properties, t.Names = t.table.Properties(), namesOf(t.table.Metadata().NameMapping())
	t.identity = identityFieldsOf(t.table.Metadata().PartitionSpecs())
	return nil
}

// choose resolves a selection with the table's metadata.
func (t *Table) choose(sel Selection) error {
	if err := sel.validate(); err != nil {
		return err
	}
	t.trusted = sel.TrustManifests
	var err error
	if t.scan, err = scanOf(t.table, sel); err != nil {
		return err
	}
	snapshot, err := t.scan.ResolveSnapshot()
	if err != nil {
		return err
	}
	if t.schema, err = t.scan.Projection(); err != nil {
		return fmt.Errorf("schema of the snapshot: %w", err)
	}
	t.whole = withLineage(t.schema, t.table.Metadata().Version())
	selected, err := t.selectColumns(sel.Columns)
	if err != nil {
		return err
	}
	if t.Fields, err = t.fieldsOf(selected); err != nil {
		return err
	}
	t.Served = arrowSchema(t.Fields)
	t.pin = Pin{
		MetadataLocation: t.table.MetadataLocation(),
		UUID:             t.table.Metadata().TableUUID().String(),
		SchemaID:         t.schema.ID,
		FormatVersion:    t.table.Metadata().Version(),
	}
	if snapshot != nil {
		t.pin.SnapshotID, t.pin.HasSnapshot = snapshot.SnapshotID, true
	}
	return t.bindFilter(sel)
}

// bindFilter binds the selection's filter.
func (t *Table) bindFilter(sel Selection) error {
	if strings.TrimSpace(sel.Filter) == "" {
		return nil
	}
	var fields []column.Field
	for _, f := range t.whole.Fields() {
		field, err := t.fieldOf(f)
		if err != nil {
			field = column.Field{ID: f.ID, Name: f.Name, Type: arrow.Null, TypeName: f.Type.String()}
		}
		fields = append(fields, field)
	}
	var err error
	if t.Filter, err = filter.Parse(sel.Filter, fields); err != nil {
		return fmt.Errorf("filter %q: %w", sel.Filter, err)
	}
	t.Compared = slices.DeleteFunc(slices.Clone(t.Filter.Fields()), func(f column.Field) bool {
		return ice.IsMetadataColumn(f.ID) // row lineage is inherited: files have no statistics of it
	})
	return nil
}

// Pin returns the pin of the table.
func (t *Table) Pin() Pin { return t.pin }
