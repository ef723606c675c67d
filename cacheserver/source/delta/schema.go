// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// schemaField is a field of a struct in metaData.schemaString.
type schemaField struct {
	Name     string          `json:"name"`
	Type     json.RawMessage `json:"type"`
	Nullable bool            `json:"nullable"`
	Metadata struct {
		ID   *int64 `json:"delta.columnMapping.id"`
		Name string `json:"delta.columnMapping.physicalName"`
	} `json:"metadata"`
}

// nestedType is a type in metaData.schemaString that has parts.
type nestedType struct {
	Type         string          `json:"type"`
	Fields       []schemaField   `json:"fields"`
	Element      json.RawMessage `json:"elementType"`
	Key          json.RawMessage `json:"keyType"`
	Value        json.RawMessage `json:"valueType"`
	ContainsNull bool            `json:"containsNull"`
	ValueNull    bool            `json:"valueContainsNull"`
}

// schema is the columns of a table.
type schema struct {
	fields   []column.Field
	names    parquet.NameMapping // the names of the columns in data files, which lack partition columns
	physical map[int]string      // the names of the top-level fields in partition values
}

const (
	deepest  = 100     // levels of a type
	firstOwn = 1 << 31 // ids of fields that have none in the table, which has ids of 31 bits
)

// schemaReader gives fields their ids.
type schemaReader struct {
	mode string
	next int
}

// parseSchema parses metaData.schemaString. A column of a type that is not served is an error, unless other columns are selected.
func parseSchema(m *metaData, mode string, selected []string) (*schema, error) {
	var all nestedType
	if err := json.Unmarshal([]byte(m.Schema), &all); err != nil || all.Type != "struct" {
		return nil, fmt.Errorf("metaData.schemaString %.40q is no schema: restore the log", m.Schema)
	}
	r := &schemaReader{mode: mode, next: firstOwn}
	s, seen := &schema{physical: map[int]string{}}, map[fieldName]bool{}
	for _, f := range all.Fields {
		field, name, err := r.field(f, 0)
		if err = cmp.Or(err, f.distinct(seen)); err != nil {
			if len(selected) > 0 && !slices.Contains(selected, f.Name) {
				continue
			}
			return nil, fmt.Errorf("column %q: %w: leave the column out", f.Name, err)
		}
		s.fields, s.physical[field.ID] = append(s.fields, field), name.Names[0]
		if !slices.Contains(m.Partitions, f.Name) {
			s.names = append(s.names, name)
		}
	}
	return s, nil
}

// fieldName is a name of a field of a struct.
type fieldName struct{ kind, name string }

// distinct returns an error if a field before has the same name or physical name. seen has the names of these, and gets those of f.
func (f *schemaField) distinct(seen map[fieldName]bool) error {
	for _, own := range []fieldName{{"name", f.Name}, {"delta.columnMapping.physicalName", f.Metadata.Name}} {
		if own.name != "" && seen[own] {
			return fmt.Errorf("two fields have the %s %s: restore the log", own.kind, own.name)
		}
		seen[own] = true
	}
	return nil
}

func (r *schemaReader) field(f schemaField, depth int) (column.Field, parquet.MappedName, error) {
	field, name, err := r.typed(f.Name, f.Type, f.Nullable, depth)
	if err != nil || r.mode == "" {
		return field, name, err
	}
	if f.Metadata.Name == "" || f.Metadata.ID == nil || *f.Metadata.ID < 0 || *f.Metadata.ID >= firstOwn {
		return field, name, fmt.Errorf("field %q has no delta.columnMapping.physicalName or no delta.columnMapping.id, which mapping by %s needs: restore the log", f.Name, r.mode)
	}
	name.Names = []string{f.Metadata.Name}
	if r.mode == byID {
		field.ID = int(*f.Metadata.ID)
		name.ID = field.ID
	}
	return field, name, nil
}

// typed returns a field of a type in the form of JSON.
func (r *schemaReader) typed(name string, raw json.RawMessage, null bool, depth int) (column.Field, parquet.MappedName, error) {
	r.next++
	f := column.Field{ID: r.next, Name: name, Required: !null}
	mapped := parquet.MappedName{Names: []string{name}, ID: f.ID, AnyCase: r.mode == ""} // Spark resolves names without regard to case
	var err error
	if json.Unmarshal(raw, &f.TypeName) == nil {
		f.Type, err = primitive(f.TypeName)
		return f, mapped, err
	}
	var nested nestedType
	if err := json.Unmarshal(raw, &nested); err != nil || depth > deepest {
		return f, mapped, fmt.Errorf("field %q has type %.40q, which is none or has more than %d levels: restore the log", name, raw, deepest)
	}
	f.TypeName = nested.Type
	add := func(kid column.Field, of parquet.MappedName, err error) error {
		f.Kids, mapped.Kids = append(f.Kids, kid), append(mapped.Kids, of)
		return err
	}
	switch nested.Type {
	case "struct":
		seen := map[fieldName]bool{}
		for _, kid := range nested.Fields {
			if err = cmp.Or(add(r.field(kid, depth+1)), kid.distinct(seen)); err != nil {
				return f, mapped, err
			}
		}
		f.Type = arrow.StructOf(arrowFields(f.Kids)...)
	case "array":
		if err = add(r.typed("element", nested.Element, nested.ContainsNull, depth+1)); err == nil {
			f.Type = arrow.ListOfField(arrowFields(f.Kids)[0])
		}
	case "map":
		if err = errors.Join(add(r.typed("key", nested.Key, false, depth+1)), add(r.typed("value", nested.Value, nested.ValueNull, depth+1))); err == nil {
			parts := arrowFields(f.Kids)
			f.Type = arrow.MapOfFields(parts[0], parts[1])
		}
	default:
		err = fmt.Errorf("type %q is not supported", nested.Type)
	}
	return f, mapped, err
}

func arrowFields(fields []column.Field) []arrow.Field {
	out := make([]arrow.Field, len(fields))
	for i, f := range fields {
		out[i] = arrow.Field{Name: f.Name, Type: f.Type, Nullable: !f.Required}
	}
	return out
}

var primitives = map[string]arrow.DataType{
	"string": arrow.BinaryTypes.String, "binary": arrow.BinaryTypes.Binary, "boolean": arrow.FixedWidthTypes.Boolean,
	"byte": arrow.PrimitiveTypes.Int8, "short": arrow.PrimitiveTypes.Int16, "integer": arrow.PrimitiveTypes.Int32, "long": arrow.PrimitiveTypes.Int64,
	"float": arrow.PrimitiveTypes.Float32, "double": arrow.PrimitiveTypes.Float64, "date": arrow.FixedWidthTypes.Date32, "void": arrow.Null,
	"timestamp": &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}, "timestamp_ntz": &arrow.TimestampType{Unit: arrow.Microsecond},
}

var decimalForm = regexp.MustCompile(`^decimal\((\d{1,2}), *(\d{1,2})\)$`)

// primitive returns the type that a type without parts is served as.
func primitive(name string) (arrow.DataType, error) {
	if t, ok := primitives[name]; ok {
		return t, nil
	}
	const most = 38 // digits of a decimal of 128 bits
	if m := decimalForm.FindStringSubmatch(name); m != nil {
		precision, err1 := strconv.Atoi(m[1])
		scale, err2 := strconv.Atoi(m[2])
		if err1 == nil && err2 == nil && precision > 0 && precision <= most && scale <= precision {
			return &arrow.Decimal128Type{Precision: int32(precision), Scale: int32(scale)}, nil
		}
	}
	return nil, fmt.Errorf("type %q is not supported", name)
}
