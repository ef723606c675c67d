// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// mostListed bounds the number of snapshots or refs that a message lists.
const mostListed = 10

// scanOf returns a scan of the selected snapshot with its schema; the caller's options add filter and columns.
func scanOf(t *table.Table, sel Selection, options ...table.ScanOption) (*table.Scan, error) {
	switch {
	case sel.SnapshotID != nil:
		if *sel.SnapshotID == 0 || t.SnapshotByID(*sel.SnapshotID) == nil {
			return nil, fmt.Errorf("snapshot %d: the table has no such snapshot, it has %s", *sel.SnapshotID, listSnapshots(t))
		}
		options = append(options, table.WithSnapshotID(*sel.SnapshotID))
	case sel.AsOf != nil:
		if t.SnapshotAsOf(sel.AsOf.UnixMilli(), true) == nil {
			return nil, fmt.Errorf("as of %s: the table had no snapshot then, it has %s", sel.AsOf.UTC().Format(time.RFC3339Nano), listSnapshots(t))
		}
		options = append(options, table.WithSnapshotAsOf(sel.AsOf.UnixMilli()))
	}
	scan := t.Scan(options...)
	if sel.Ref == "" {
		return scan, nil
	}
	refs := maps.Collect(t.Metadata().Refs())
	if _, ok := refs[sel.Ref]; !ok && sel.Ref != table.MainBranch {
		return nil, fmt.Errorf("ref %q: the table has no such branch or tag, it has %s", sel.Ref, listRefs(refs))
	}
	return scan.UseRef(sel.Ref)
}

func listRefs(refs map[string]table.SnapshotRef) string {
	if len(refs) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(refs))
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %q", refs[name].SnapshotRefType, name)
	}
	return listed(names)
}

func listSnapshots(t *table.Table) string {
	all := newestFirst(t.Metadata().Snapshots())
	if len(all) == 0 {
		return "none"
	}
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = fmt.Sprintf("%d of %s", s.SnapshotID, timeOf(s))
	}
	return listed(names)
}

func newestFirst(snapshots []table.Snapshot) []table.Snapshot {
	return slices.SortedFunc(slices.Values(snapshots), func(a, b table.Snapshot) int { return cmp.Compare(b.TimestampMs, a.TimestampMs) })
}

func timeOf(s table.Snapshot) string {
	return time.UnixMilli(s.TimestampMs).UTC().Format("2006-01-02T15:04:05.000Z")
}

// Name is something of a table that a Selection may name, with a few words about it.
type Name struct{ Name, Says string }

// Columns lists the table's columns that are served, with their types.
func (t *Table) Columns() []Name {
	names := make([]Name, len(t.Fields))
	for i, f := range t.Fields {
		names[i] = Name{f.Name, f.Type.String()}
	}
	return names
}

// Refs lists the table's branches and tags by name.
func (t *Table) Refs() []Name {
	var names []Name
	refs := maps.Collect(t.table.Metadata().Refs())
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		names = append(names, Name{name, string(refs[name].SnapshotRefType)})
	}
	return names
}

// Snapshots lists the table's snapshots, the newest first, with their times.
func (t *Table) Snapshots() []Name {
	var names []Name
	for _, s := range newestFirst(t.table.Metadata().Snapshots()) {
		names = append(names, Name{fmt.Sprint(s.SnapshotID), timeOf(s)})
	}
	return names
}

// listed joins the first mostListed names.
func listed(names []string) string {
	if more := len(names) - mostListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostListed], ", "), more)
	}
	return strings.Join(names, ", ")
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
