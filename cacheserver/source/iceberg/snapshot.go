// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// mostListed bounds the number of snapshots or refs that a message lists.
const mostListed = 10

func atTime(n Name) string { return n.Name + " of " + n.Says }

// scanOf returns a scan of the selected snapshot with its schema; the caller's options add filter and columns.
func scanOf(t *table.Table, sel Selection, options ...table.ScanOption) (*table.Scan, error) {
	switch {
	case sel.SnapshotID != nil:
		if *sel.SnapshotID == 0 || t.SnapshotByID(*sel.SnapshotID) == nil {
			return nil, fmt.Errorf("snapshot %d: the table has no such snapshot, it has %s", *sel.SnapshotID, listed(snapshotsOf(t), atTime))
		}
		options = append(options, table.WithSnapshotID(*sel.SnapshotID))
	case sel.AsOf != nil:
		if t.SnapshotAsOf(sel.AsOf.UnixMilli(), true) == nil {
			return nil, fmt.Errorf("as of %s: the table had no snapshot then, it has %s", sel.AsOf.UTC().Format(time.RFC3339Nano), listed(snapshotsOf(t), atTime))
		}
		options = append(options, table.WithSnapshotAsOf(sel.AsOf.UnixMilli()))
	}
	scan := t.Scan(append(options, table.WithMaxConcurrency(matchReaders))...)
	if sel.Ref == "" {
		return scan, nil
	}
	refs := refsOf(t)
	if !slices.ContainsFunc(refs, func(n Name) bool { return n.Name == sel.Ref }) && sel.Ref != table.MainBranch {
		return nil, fmt.Errorf("ref %q: the table has no such branch or tag, it has %s", sel.Ref, listed(refs, func(n Name) string { return fmt.Sprintf("%s %q", n.Says, n.Name) }))
	}
	return scan.UseRef(sel.Ref)
}

// Name is something of a table that a Selection may name, with a few words about it.
type Name struct{ Name, Says string }

// Columns lists the table's columns that are served, with their types.
func (t *Table) Columns() []Name {
	names := make([]Name, len(t.Fields))
	for i, f := range t.Fields {
		names[i] = Name{f.Name, f.TypeName}
	}
	return names
}

// Refs lists the table's branches and tags by name.
func (t *Table) Refs() []Name { return refsOf(t.table) }

func refsOf(t *table.Table) []Name {
	var names []Name
	for name, ref := range t.Metadata().Refs() {
		names = append(names, Name{name, string(ref.SnapshotRefType)})
	}
	slices.SortFunc(names, func(a, b Name) int { return strings.Compare(a.Name, b.Name) })
	return names
}

// Snapshots lists the table's snapshots, the newest first, with their times.
func (t *Table) Snapshots() []Name { return snapshotsOf(t.table) }

func snapshotsOf(t *table.Table) []Name {
	var names []Name
	all := slices.SortedFunc(slices.Values(t.Metadata().Snapshots()), func(a, b table.Snapshot) int { return cmp.Compare(b.TimestampMs, a.TimestampMs) })
	for _, s := range all {
		names = append(names, Name{fmt.Sprint(s.SnapshotID), time.UnixMilli(s.TimestampMs).UTC().Format("2006-01-02T15:04:05.000Z")})
	}
	return names
}

// listed joins the first mostListed of some things, as text formats them; "none" if there are none.
func listed[T any](all []T, text func(T) string) string {
	if len(all) == 0 {
		return "none"
	}
	var parts []string
	for _, x := range all[:min(len(all), mostListed)] {
		parts = append(parts, text(x))
	}
	if more := len(all) - mostListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(parts, ", "), more)
	}
	return strings.Join(parts, ", ")
}

// selectColumns returns the fields of the table with the given names, in the table's order and those of row lineage last; all fields of
// the schema if there are no names.
func (t *Table) selectColumns(names []string) ([]ice.NestedField, error) {
	fields := t.whole.Fields()
	if len(names) == 0 {
		fields = t.schema.Fields()
	}
	have := make([]string, len(fields))
	for i, f := range fields {
		have[i] = f.Name
	}
	for i, name := range names {
		switch {
		case slices.Contains(have, name):
		case slices.ContainsFunc(lineage(), func(f ice.NestedField) bool { return f.Name == name }):
			return nil, fmt.Errorf("column %q: tables have it from format version %d on, this one has version %d: upgrade it", name, firstWithLineage, t.table.Metadata().Version())
		default:
			return nil, fmt.Errorf("column %q: the table has no such top-level column, it has %q", name, have)
		}
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("column %q is named twice: name every column once", name)
		}
	}
	if len(names) > 0 {
		fields = slices.DeleteFunc(fields, func(f ice.NestedField) bool { return !slices.Contains(names, f.Name) })
	}
	return fields, distinct(fields)
}

// distinct returns an error if two fields have the same name.
func distinct(fields []ice.NestedField) error {
	ids := map[string]int{}
	for _, f := range fields {
		if id, ok := ids[f.Name]; ok {
			return fmt.Errorf("column %q: the table's schema has two columns of this name, with the field ids %d and %d: rename one, or select other columns", f.Name, id, f.ID)
		}
		ids[f.Name] = f.ID
	}
	return nil
}
