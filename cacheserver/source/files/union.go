// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// shape is what files with equal columns have in common.
type shape struct {
	uri     string // of the first such file
	first   int    // its index
	columns []parquet.Column
	known   bool // whether the union has its columns
}

// keyOf is equal for files with equal columns.
func keyOf(columns []parquet.Column) string {
	var key strings.Builder
	for _, c := range columns {
		if c.Problem != nil {
			fmt.Fprintf(&key, "(%v)", c.Problem)
		}
		writeKey(&key, c.Field)
		fmt.Fprintf(&key, "%v", c.Metadata)
	}
	return key.String()
}

func writeKey(key *strings.Builder, f arrow.Field) {
	fmt.Fprintf(key, "%q %t ", f.Name, f.Nullable)
	nested, ok := f.Type.(arrow.NestedType)
	if !ok {
		fmt.Fprintf(key, "%s,", f.Type)
		return
	}
	fmt.Fprintf(key, "%s<", f.Type.ID())
	if fixed, ok := f.Type.(*arrow.FixedSizeListType); ok {
		fmt.Fprintf(key, "%d ", fixed.Len())
	}
	for _, kid := range nested.Fields() {
		writeKey(key, kid)
	}
	key.WriteString(">,")
}

// union is the columns of all files.
type union struct {
	fields   []arrow.Field
	problems map[string]error // why a column that is not in fields cannot be served
}

// unionOf returns the columns of all shapes, in the order in which they first appear in the files. A column is nullable unless all files
// have it and none has nulls of it.
func unionOf(shapes []*shape) union {
	slices.SortFunc(shapes, func(a, b *shape) int { return a.first - b.first })
	u := union{problems: map[string]error{}}
	at, from, in := map[string]int{}, map[string]string{}, map[string]int{}
	for _, s := range shapes {
		for _, c := range s.columns {
			in[c.Name]++
			if c.Problem == nil {
				c.Problem = cmp.Or(scan.CheckDepth(c.Type), unsupported(c.Type))
			}
			if c.Problem != nil {
				u.problem(c.Name, fmt.Errorf("%s: %w", s.uri, c.Problem))
			}
			i, ok := at[c.Name]
			if !ok {
				at[c.Name], from[c.Name] = len(u.fields), s.uri
				u.fields = append(u.fields, c.Field)
				continue
			}
			own := &u.fields[i]
			both, ok := unite(own.Type, c.Type)
			if !ok {
				u.problem(c.Name, fmt.Errorf("%s has %s, %s has %s: no type holds the values of both: rewrite one of the files", from[c.Name], own.Type, s.uri, c.Type))
				continue
			}
			own.Type, own.Nullable = both, own.Nullable || c.Nullable
			if !own.Metadata.Equal(c.Metadata) {
				own.Metadata = arrow.Metadata{} // tensors of different shapes are lists
			}
		}
	}
	for i, f := range u.fields {
		u.fields[i].Nullable = f.Nullable || in[f.Name] < len(shapes)
	}
	u.fields = slices.DeleteFunc(u.fields, func(f arrow.Field) bool { return u.problems[f.Name] != nil })
	return u
}

// problem records the first problem of a column.
func (u *union) problem(name string, err error) {
	if u.problems[name] == nil {
		u.problems[name] = err
	}
}

// add adds the columns of folder names.
func (u *union) add(partitions []arrow.Field) error {
	for _, p := range partitions {
		both := slices.ContainsFunc(u.fields, func(f arrow.Field) bool { return f.Name == p.Name }) || u.problems[p.Name] != nil
		if both {
			return fmt.Errorf("column %q is in the files and in the names of their folders: say that folder names are no columns (partitions off), or rename the folders", p.Name)
		}
	}
	u.fields = append(u.fields, partitions...)
	return nil
}

// unsupported returns why values of a type cannot be served; nil: they can.
func unsupported(t arrow.DataType) error {
	switch t := t.(type) {
	case *arrow.Decimal256Type, *arrow.DictionaryType, *arrow.RunEndEncodedType:
		return fmt.Errorf("type %s cannot be served", t)
	case arrow.ExtensionType:
		if t.ExtensionName() != "arrow.uuid" {
			return fmt.Errorf("type %s cannot be served", t)
		}
	case arrow.NestedType:
		for _, kid := range t.Fields() {
			if err := unsupported(kid.Type); err != nil {
				return err
			}
		}
	}
	return nil
}

// unite returns the type that holds all values of two types exactly; false if there is none.
func unite(a, b arrow.DataType) (arrow.DataType, bool) {
	switch {
	case arrow.TypeEqual(a, b), b.ID() == arrow.NULL:
		return a, true
	case a.ID() == arrow.NULL:
		return b, true
	case isInteger(a) && isInteger(b):
		return uniteIntegers(a, b)
	case isList(a) && isList(b):
		return uniteLists(a.(arrow.ListLikeType), b.(arrow.ListLikeType))
	case a.ID() != b.ID():
		return uniteKinds(a, b)
	}
	switch a := a.(type) {
	case *arrow.Decimal128Type:
		b := b.(*arrow.Decimal128Type)
		return &arrow.Decimal128Type{Precision: max(a.Precision, b.Precision), Scale: a.Scale}, a.Scale == b.Scale
	case *arrow.TimestampType:
		b := b.(*arrow.TimestampType)
		return &arrow.TimestampType{Unit: max(a.Unit, b.Unit), TimeZone: a.TimeZone}, a.TimeZone == b.TimeZone
	case *arrow.Time64Type:
		return &arrow.Time64Type{Unit: max(a.Unit, b.(*arrow.Time64Type).Unit)}, true
	case *arrow.MapType:
		b := b.(*arrow.MapType)
		key, ok1 := uniteFields(a.KeyField(), b.KeyField())
		item, ok2 := uniteFields(a.ItemField(), b.ItemField())
		return arrow.MapOfFields(key, item), ok1 && ok2
	case *arrow.StructType:
		return uniteStructs(a, b.(*arrow.StructType))
	}
	return nil, false
}

// uniteKinds unites types of different kinds that are no integers.
func uniteKinds(a, b arrow.DataType) (arrow.DataType, bool) {
	floats := []arrow.Type{arrow.FLOAT16, arrow.FLOAT32, arrow.FLOAT64}
	if x, y := slices.Index(floats, a.ID()), slices.Index(floats, b.ID()); x >= 0 && y >= 0 {
		if x > y {
			return a, true
		}
		return b, true
	}
	for _, t := range [][2]arrow.DataType{{a, b}, {b, a}} {
		if t[0].ID() == arrow.TIME32 && t[1].ID() == arrow.TIME64 {
			return t[1], true
		}
	}
	return nil, false
}

func isList(t arrow.DataType) bool {
	return t.ID() == arrow.LIST || t.ID() == arrow.FIXED_SIZE_LIST
}

// uniteLists unites lists; those of different lengths have a type of any length.
func uniteLists(a, b arrow.ListLikeType) (arrow.DataType, bool) {
	kid, ok := uniteFields(a.ElemField(), b.ElemField())
	x, fixed1 := a.(*arrow.FixedSizeListType)
	y, fixed2 := b.(*arrow.FixedSizeListType)
	if ok && fixed1 && fixed2 && x.Len() == y.Len() {
		return arrow.FixedSizeListOfField(x.Len(), kid), true
	}
	if !ok {
		return nil, false
	}
	return arrow.ListOfField(kid), true
}

func isInteger(t arrow.DataType) bool { return arrow.IsInteger(t.ID()) }

// uniteIntegers unites integers; an unsigned one and a signed one have a signed type of more bits than the unsigned one.
func uniteIntegers(a, b arrow.DataType) (arrow.DataType, bool) {
	bits := func(t arrow.DataType) int { return t.(arrow.FixedWidthDataType).BitWidth() }
	if arrow.IsUnsignedInteger(a.ID()) == arrow.IsUnsignedInteger(b.ID()) {
		if bits(a) >= bits(b) {
			return a, true
		}
		return b, true
	}
	if arrow.IsUnsignedInteger(b.ID()) {
		a, b = b, a
	}
	signed := map[int]arrow.DataType{8: arrow.PrimitiveTypes.Int8, 16: arrow.PrimitiveTypes.Int16, 32: arrow.PrimitiveTypes.Int32, 64: arrow.PrimitiveTypes.Int64}
	t, ok := signed[max(2*bits(a), bits(b))]
	return t, ok
}

func uniteFields(a, b arrow.Field) (arrow.Field, bool) {
	t, ok := unite(a.Type, b.Type)
	return arrow.Field{Name: a.Name, Type: t, Nullable: a.Nullable || b.Nullable}, ok
}

// uniteStructs returns the struct with the fields of both, which are null where a file lacks them.
func uniteStructs(a, b *arrow.StructType) (arrow.DataType, bool) {
	fields := slices.Clone(a.Fields())
	for i, f := range fields {
		other, ok := b.FieldByName(f.Name)
		if !ok {
			fields[i].Nullable = true
			continue
		}
		if fields[i], ok = uniteFields(f, other); !ok {
			return nil, false
		}
	}
	for _, f := range b.Fields() {
		if _, ok := a.FieldByName(f.Name); !ok {
			f.Nullable = true
			fields = append(fields, f)
		}
	}
	return arrow.StructOf(fields...), true
}
