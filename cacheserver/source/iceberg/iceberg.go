// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package iceberg reads one snapshot of an Iceberg table: manifests, deletes, pruning, and the rows of its splits.
//
// Open pins one snapshot of a table. Plan lists its splits, one for each Parquet row group, in an order that depends only on the
// snapshot and the filter. Fetch prefetches a split's bytes, and Fetched.Batches decodes them: it marks rows removed by positional
// deletes, deletion vectors and equality deletes, finds columns by field id through all schemas that the table ever had, and applies
// the filter row by row with SQL semantics (a comparison with null excludes the row).
//
// iceberg-go reads metadata and manifests and prunes files. Package parquet reads row groups, in the caller's goroutine: so a panic
// over a corrupt page becomes an error of that split, and a file's footer and deletes are read once instead of once per row group.
package iceberg

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/filter"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// Table is one snapshot of an Iceberg table with the columns and the filter of a Selection. It is safe for concurrent use and need
// not be closed. Open makes Tables.
type Table struct {
	store      *objstore.Store
	table      *table.Table
	pin        Pin
	scan       *table.Scan
	schema     *ice.Schema       // of the snapshot
	whole      *ice.Schema       // schema and the columns of row lineage
	fields     []ice.NestedField // that are served
	served     *arrow.Schema
	trusted    bool                  // skip the checks of totals and counts: Selection.TrustManifests
	filter     ice.BooleanExpression // bound to schema; nil: all rows
	properties ice.Properties
	defaults   defaults
	mem        memory.Allocator // allocator for decoding
	caches     caches
	plan       lazy[*filePlan]
	manifests  atomic.Pointer[map[string]ice.ManifestFile] // manifests of the snapshot, set by planning
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
	t, err := open(ctx, at, src, sel)
	if err != nil {
		return nil, err
	}
	if t.pin != pin {
		return nil, fmt.Errorf("open pinned table %s: %s now holds %+v, pinned was %+v: start the cache anew", src, pin.MetadataLocation, t.pin, pin)
	}
	return t, nil
}

func open(ctx context.Context, at metadataFile, src Location, sel Selection) (*Table, error) {
	t := &Table{store: at.store, trusted: sel.TrustManifests, caches: newCaches(), mem: &source.Buffers{}}
	t.plan.init()
	if err := t.load(ctx, at.metadata); err != nil {
		return nil, fmt.Errorf("open table %s: read %s, which must be an Iceberg metadata file: %w", src, at.metadata, err)
	}
	if err := t.choose(sel); err != nil {
		return nil, fmt.Errorf("open table %s: %w", src, err)
	}
	return t, nil
}

// load reads the metadata file.
func (t *Table) load(ctx context.Context, metadata string) (err error) {
	defer parquet.RecoverError(&err)
	text, err := readMetadata(ctx, t.store, metadata)
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
	t.properties = t.table.Properties()
	return nil
}

// choose resolves a selection with the table's metadata.
func (t *Table) choose(sel Selection) error {
	if err := sel.validate(); err != nil {
		return err
	}
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
	if t.fields, err = t.selectColumns(sel.Columns); err != nil {
		return err
	}
	if t.served, err = parquet.ArrowSchema(t.fields, t.properties); err != nil {
		return err
	}
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
	unbound, err := filter.Parse(sel.Filter, t.whole)
	if err != nil {
		return fmt.Errorf("filter %q: %w", sel.Filter, err)
	}
	if t.filter, err = predicate.Bind(t.whole, unbound); err != nil {
		return fmt.Errorf("filter %q: %w", sel.Filter, err)
	}
	return nil
}

// Pin returns the pin of the table.
func (t *Table) Pin() Pin { return t.pin }

// Schema returns the schema of the served rows, which is exactly that of every batch: the selected columns in the table's order,
// 32-bit offsets, no field metadata. It must not be modified.
func (t *Table) Schema() *arrow.Schema { return t.served }

// DecodeIn sets the allocator for decoding, which tables may share. Call it before Fetch.
func (t *Table) DecodeIn(b *source.Buffers) { t.mem = b }
