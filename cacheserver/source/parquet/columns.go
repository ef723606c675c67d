// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// FieldIDKey is the metadata key under which pqarrow stores the field id of a Parquet column.
const FieldIDKey = "PARQUET:field_id"

// NameMapping is a table's name mapping: it assigns field ids to the columns of files that contain no ids.
type NameMapping []MappedName

// MappedName assigns a field id to columns with any of some names, and those of Kids to what is within them.
type MappedName struct {
	Names   []string
	AnyCase bool // if the file has none of the names, a column whose name differs only in the case of letters gets the id
	ID      int  // 0: none
	Kids    NameMapping
}

// NamesOf is the name mapping of columns that files call as the table does.
func NamesOf(fields []column.Field) NameMapping {
	names := make(NameMapping, len(fields))
	for i, f := range fields {
		names[i] = MappedName{Names: []string{f.Name}, ID: f.ID, Kids: NamesOf(f.Kids)}
	}
	return names
}

// allocator allocates Arrow buffers.
type allocator = memory.Allocator

// fileColumn is a column of a file or a nested part of one: a struct's fields, a list's element, a map's key and value.
type fileColumn struct {
	id    int    // 0: it corresponds to no column of the table
	name  string // by which a name mapping finds it
	field arrow.Field
	leaf  int // index of the Parquet column; -1 if it has kids
	kids  []*fileColumn

	size       int32          // length of each list, if the writer's schema fixes it; 0: lengths may differ
	tensor     string         // the shape, as arrow.fixed_shape_tensor describes it, if lists of fixed size are tensors; empty: they are not
	origin     arrow.DataType // the writer's Arrow type, where Parquet has no such type; nil: the type of field
	unreadable error          // why its values can't be read; nil: they can
}

// fileColumns returns the columns of a file with their field ids: those in the file if it has any, otherwise those that names
// assigns.
func fileColumns(manifest *pqarrow.SchemaManifest, names NameMapping) ([]*fileColumn, error) {
	byName := true
	for i := range manifest.Fields {
		byName = byName && !hasID(&manifest.Fields[i])
	}
	if byName && names == nil && len(manifest.Fields) > 0 {
		return nil, fmt.Errorf("its columns have no field ids and the table has no name mapping: rewrite the file with ids or, in Iceberg, set the table property schema.name-mapping.default")
	}
	if !byName {
		names = nil
	}
	columns := columnsOf(manifest)
	if byName {
		assign(columns, names)
	}
	markTwins(columns, map[int]*fileColumn{})
	return columns, nil
}

// columnsOf returns the columns of a file with the field ids in the file.
func columnsOf(manifest *pqarrow.SchemaManifest) []*fileColumn {
	columns := make([]*fileColumn, len(manifest.Fields))
	for i := range manifest.Fields {
		columns[i] = newFileColumn(&manifest.Fields[i], manifest.Fields[i].Field.Name)
	}
	return columns
}

// assign replaces the field ids of columns by those that names assigns.
func assign(columns []*fileColumn, names NameMapping) {
	byName, anyCase := make(map[string]*MappedName, len(names)), map[string]*MappedName{}
	for i := range names {
		for _, name := range names[i].Names {
			if names[i].ID != 0 && byName[name] == nil {
				byName[name] = &names[i]
			}
			if names[i].ID != 0 && names[i].AnyCase && anyCase[strings.ToLower(name)] == nil {
				anyCase[strings.ToLower(name)] = &names[i]
			}
		}
	}
	found := make(map[*MappedName]bool, len(names)) // the file has a column of exactly one of the names
	for _, c := range columns {
		found[byName[c.name]] = true
	}
	for _, c := range columns {
		m := byName[c.name]
		if other := anyCase[strings.ToLower(c.name)]; m == nil && !found[other] {
			m = other
		}
		c.id = 0
		var kids NameMapping
		if m != nil {
			c.id, kids = m.ID, m.Kids
		}
		assign(c.kids, kids)
	}
}

// markTwins marks columns as unreadable that have the field id of another one in the file, or the name of another one beside them, a name that
// is no text, or an impossible type. byID has the columns seen so far.
func markTwins(columns []*fileColumn, byID map[int]*fileColumn) {
	byName := map[string]*fileColumn{}
	for _, c := range columns {
		if first := byName[c.field.Name]; first != nil {
			c.unreadable = errors.New("the file has two columns of this name: rewrite the file")
			first.unreadable = c.unreadable
		}
		if !utf8.ValidString(c.field.Name) {
			c.unreadable = fmt.Errorf("its name %q is not UTF-8: rewrite the file", c.field.Name)
		}
		if d, ok := c.field.Type.(arrow.DecimalType); ok && (d.GetScale() < 0 || d.GetScale() > d.GetPrecision()) {
			c.unreadable = fmt.Errorf("it is a decimal of %d digits, %d of them behind the point: rewrite the file", d.GetPrecision(), d.GetScale())
		}
		byName[c.field.Name] = c
		if first := byID[c.id]; first != nil && c.id > 0 {
			c.unreadable = fmt.Errorf("the file has two columns with field id %d, %q and %q: rewrite the file", c.id, first.field.Name, c.field.Name)
			first.unreadable = c.unreadable
		}
		byID[c.id] = c
		markTwins(c.kids, byID)
	}
}

func newFileColumn(f *pqarrow.SchemaField, name string) *fileColumn {
	c := &fileColumn{id: ownID(f), name: name, field: *f.Field, leaf: f.ColIndex}
	kids, kidNames := f.Children, []string(nil)
	switch f.Field.Type.(type) {
	case *arrow.MapType:
		kids, kidNames = f.Children[0].Children, []string{"key", "value"}
	case arrow.ListLikeType:
		kidNames = []string{"element"}
	}
	for i := range kids {
		kidName := kids[i].Field.Name
		if kidNames != nil {
			kidName = kidNames[i]
		}
		c.kids = append(c.kids, newFileColumn(&kids[i], kidName))
	}
	return c
}

// hasID reports whether a column or anything within it has a field id.
func hasID(f *pqarrow.SchemaField) bool {
	if ownID(f) > 0 {
		return true
	}
	for i := range f.Children {
		if hasID(&f.Children[i]) {
			return true
		}
	}
	return false
}

func ownID(f *pqarrow.SchemaField) int {
	text, ok := f.Field.Metadata.GetValue(FieldIDKey)
	if !ok {
		return 0
	}
	id, err := strconv.Atoi(text)
	if err != nil || id < 0 {
		return 0
	}
	return id
}

// byID returns columns by their field ids, the first of each.
func byID(columns []*fileColumn) map[int]*fileColumn {
	ids := make(map[int]*fileColumn, len(columns))
	for _, c := range columns {
		if c.id > 0 && ids[c.id] == nil {
			ids[c.id] = c
		}
	}
	return ids
}

// markLeaves adds all Parquet columns of c to leaves.
func (c *fileColumn) markLeaves(leaves map[int]bool) {
	if c.leaf >= 0 {
		leaves[c.leaf] = true
	}
	for _, k := range c.kids {
		k.markLeaves(leaves)
	}
}

// markMaps adds all Parquet columns of the maps in c to leaves: of a top-level column of which it reads anything, pqarrow reads every map.
func (c *fileColumn) markMaps(leaves map[int]bool) {
	if c.field.Type.ID() == arrow.MAP {
		c.markLeaves(leaves)
		return
	}
	for _, k := range c.kids {
		k.markMaps(leaves)
	}
}

// anyLeaf reports whether one of c's Parquet columns is in leaves.
func (c *fileColumn) anyLeaf(leaves map[int]bool) bool {
	if c.leaf >= 0 && leaves[c.leaf] {
		return true
	}
	for _, k := range c.kids {
		if k.anyLeaf(leaves) {
			return true
		}
	}
	return false
}

// readLeaves appends to all those of c's Parquet columns that are in leaves.
func (c *fileColumn) readLeaves(all []int, leaves map[int]bool) []int {
	if c.leaf >= 0 && leaves[c.leaf] {
		all = append(all, c.leaf)
	}
	for _, k := range c.kids {
		all = k.readLeaves(all, leaves)
	}
	return all
}

// firstLeaf is the first Parquet column of c.
func (c *fileColumn) firstLeaf() int {
	for c.leaf < 0 && len(c.kids) > 0 {
		c = c.kids[0]
	}
	return c.leaf
}
