// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
)

// kind is the memory layout of a node's slots.
type kind uint8

const (
	kindNull      kind = iota // no buffer
	kindBool                  // validity, bits
	kindFixed                 // validity, values of width bytes
	kindVar                   // validity, offsets of width bytes, data
	kindList                  // validity, offsets of width bytes; one child (a map is a list of structs)
	kindFixedList             // validity; one child with width slots per list
	kindStruct                // validity; children
	kindLength                // lengths, int32: the differences of the offsets of a kindVar or kindList; chunks don't store them
)

// buffers is the number of IPC buffers of a kind.
func (k kind) buffers() int {
	return [...]int{kindNull: 0, kindBool: 2, kindFixed: 2, kindVar: 3, kindList: 2, kindFixedList: 1, kindStruct: 1, kindLength: 2}[k]
}

// node is one array of the flattened schema, in the pre-order of the Arrow IPC format.
type node struct {
	kind  kind
	width int
	id    int // index among the layout's nodes
	buf   int // index of its first buffer among the layout's buffers
	count int // number of nodes in its subtree, itself included
	kids  []*node
	typ   arrow.DataType // storage type, without dictionaries
	path  string         // "a.b.element", for errors
	strip *strip         // nil: its values are stored contiguously
	at    int            // offset in a strip's row

	integer bool // an integer type of 32 or 64 bits, which chunks may store in fewer bytes
}

// column is one top-level field: its nodes and buffers are consecutive.
type column struct {
	root           *node
	nodes, buffers [2]int // half-open ranges
	length         *node  // node of the column of its lengths; nil if its values have none
}

// Layout is the memory layout of rows of a schema. It is immutable and safe for concurrent use.
type Layout struct {
	schema  *arrow.Schema
	columns []column
	nodes   []*node // without nodes of lengths, whose ids come after these
	buffers int
	strips  []*strip
	all     *Projection
}

// NewLayout returns the layout of a schema. It supports null, boolean, number, decimal, date, time, timestamp, duration, interval,
// fixed-size binary, string, binary (and large), list (and large), fixed-size list, struct and map. An extension is stored as its
// storage type but keeps its own type; a dictionary is stored as its values. Any other type is an error that names the field.
func NewLayout(schema *arrow.Schema) (*Layout, error) {
	l := &Layout{}
	fields := make([]arrow.Field, schema.NumFields())
	for i, f := range schema.Fields() {
		f.Type = plainType(f.Type)
		fields[i] = f
		c := column{nodes: [2]int{len(l.nodes)}, buffers: [2]int{l.buffers}}
		root, err := l.add(f.Type, f.Name)
		if err != nil {
			return nil, err
		}
		c.root, c.nodes[1], c.buffers[1] = root, len(l.nodes), l.buffers
		l.columns = append(l.columns, c)
	}
	l.addLengths()
	l.findStrips()
	meta := schema.Metadata()
	l.schema = arrow.NewSchema(fields, &meta)
	all := make([]int, len(fields))
	for i := range all {
		all[i] = i
	}
	var err error
	l.all, err = l.Project(all)
	return l, err
}

// nodesOf returns the nodes of a column.
func (l *Layout) nodesOf(c int) []*node {
	return l.nodes[l.columns[c].nodes[0]:l.columns[c].nodes[1]]
}

// Schema is the schema of the rows: the given one, with plain types in place of dictionaries.
func (l *Layout) Schema() *arrow.Schema { return l.schema }

// Match returns an error if the rows of a schema don't have the memory layout of l. It names the column and both types.
func (l *Layout) Match(s *arrow.Schema) error { return l.match(s) }

// match returns an error that says how a schema differs from the layout's in names or in the memory layout of its columns.
func (l *Layout) match(s *arrow.Schema) error {
	if s.NumFields() != len(l.columns) {
		return fmt.Errorf("%d columns: the table's schema has %d", s.NumFields(), len(l.columns))
	}
	for i, f := range s.Fields() {
		if own := l.schema.Field(i).Name; f.Name != own {
			return fmt.Errorf("column %d is %q: the table's schema has %q", i, f.Name, own)
		}
		if err := matches(l.columns[i].root, f.Type); err != nil {
			return err
		}
	}
	return nil
}

// equal reports whether rows of l and o have the same memory layout.
func (l *Layout) equal(o *Layout) bool {
	return l == o || l.match(o.schema) == nil
}

func (l *Layout) add(dt arrow.DataType, path string) (*node, error) {
	dt = storage(dt)
	k, width, ok := shape(dt)
	if !ok {
		return nil, fmt.Errorf("field %q: type %s can't be cached: leave the column out", path, dt)
	}
	n := &node{kind: k, width: width, id: len(l.nodes), buf: l.buffers, typ: dt, path: path, integer: isInteger(dt)}
	l.nodes = append(l.nodes, n)
	l.buffers += k.buffers()
	n.count = 1
	nested, ok := dt.(arrow.NestedType)
	if !ok {
		return n, nil
	}
	for _, f := range nested.Fields() {
		kid, err := l.add(f.Type, path+"."+f.Name)
		if err != nil {
			return nil, err
		}
		n.kids = append(n.kids, kid)
		n.count += kid.count
	}
	return n, nil
}

// shape returns the kind and width of a storage type.
func shape(dt arrow.DataType) (k kind, width int, ok bool) {
	switch t := dt.(type) {
	case *arrow.NullType:
		return kindNull, 0, true
	case *arrow.BooleanType:
		return kindBool, 0, true
	case *arrow.StringType, *arrow.BinaryType:
		return kindVar, 4, true
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		return kindVar, 8, true
	case *arrow.ListType, *arrow.MapType:
		return kindList, 4, true
	case *arrow.LargeListType:
		return kindList, 8, true
	case *arrow.FixedSizeListType:
		return kindFixedList, int(t.Len()), true
	case *arrow.StructType:
		return kindStruct, 0, true
	case *arrow.DictionaryType:
		return 0, 0, false
	case arrow.FixedWidthDataType:
		return kindFixed, t.BitWidth() / 8, true
	}
	return 0, 0, false
}

// storage returns the storage type below any extension types.
func storage(dt arrow.DataType) arrow.DataType {
	for {
		ext, ok := dt.(arrow.ExtensionType)
		if !ok {
			return dt
		}
		dt = ext.StorageType()
	}
}

// plainType returns dt with every dictionary type replaced by the type of its values.
func plainType(dt arrow.DataType) arrow.DataType {
	if !hasDictionary(dt) {
		return dt
	}
	field := func(f arrow.Field) arrow.Field {
		f.Type = plainType(f.Type)
		return f
	}
	switch t := dt.(type) {
	case *arrow.DictionaryType:
		return plainType(t.ValueType)
	case *arrow.ListType:
		return arrow.ListOfField(field(t.ElemField()))
	case *arrow.LargeListType:
		return arrow.LargeListOfField(field(t.ElemField()))
	case *arrow.FixedSizeListType:
		return arrow.FixedSizeListOfField(t.Len(), field(t.ElemField()))
	case *arrow.MapType:
		m := arrow.MapOfFields(field(t.KeyField()), field(t.ItemField()))
		m.KeysSorted = t.KeysSorted
		return m
	case *arrow.StructType:
		fields := t.Fields()
		for i := range fields {
			fields[i] = field(fields[i])
		}
		return arrow.StructOf(fields...)
	}
	return dt
}

func hasDictionary(dt arrow.DataType) bool {
	if dt.ID() == arrow.DICTIONARY {
		return true
	}
	nested, ok := dt.(arrow.NestedType)
	if !ok {
		return false
	}
	for _, f := range nested.Fields() {
		if hasDictionary(f.Type) {
			return true
		}
	}
	return false
}
