// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// defaults maps field ids to the initial defaults of a table's fields, in the JSON of the metadata file. Initial defaults are
// immutable (Iceberg specification), so all schemas of the table agree.
type defaults map[int]json.RawMessage

// firstWithDefaults is the first table format version that has default values.
const firstWithDefaults = 3

// takeDefaults returns the initial defaults of a metadata file, and the file without any defaults: iceberg-go parses numbers as
// float64, which rounds longs beyond 2^53, and does not support the JSON form of dates and times.
func takeDefaults(metadata []byte) (defaults, []byte, error) {
	if !bytes.Contains(metadata, []byte(`-default"`)) {
		return nil, metadata, nil
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(metadata, &top); err != nil {
		return nil, nil, err
	}
	var version int
	if err := json.Unmarshal(top["format-version"], &version); err != nil {
		return nil, nil, fmt.Errorf("format-version: %w", err)
	}
	if version < firstWithDefaults {
		return nil, metadata, nil // iceberg-go rejects defaults in this version
	}
	taken := defaults{}
	for _, key := range []string{"schemas", "schema"} {
		if top[key] == nil {
			continue
		}
		schemas, err := decodeNumbers(top[key])
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", key, err)
		}
		if err := taken.take(schemas); err != nil {
			return nil, nil, err
		}
		if top[key], err = json.Marshal(schemas); err != nil {
			return nil, nil, err
		}
	}
	rest, err := json.Marshal(top)
	return taken, rest, err
}

// decodeNumbers decodes JSON, keeping numbers as json.Number.
func decodeNumbers(raw []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return v, d.Decode(&v)
}

// take moves the defaults of all fields within node to d.
func (d defaults) take(node any) error {
	switch node := node.(type) {
	case []any:
		for _, v := range node {
			if err := d.take(v); err != nil {
				return err
			}
		}
	case map[string]any:
		if initial, ok := node["initial-default"]; ok && initial != nil {
			if err := d.add(node["id"], initial); err != nil {
				return fmt.Errorf("default of field %v: %w", node["name"], err)
			}
		}
		delete(node, "initial-default")
		delete(node, "write-default")
		for _, key := range slices.Sorted(maps.Keys(node)) {
			if err := d.take(node[key]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d defaults) add(id, initial any) error {
	number, ok := id.(json.Number)
	if !ok {
		return fmt.Errorf("the field has no id")
	}
	n, err := strconv.Atoi(number.String())
	if err != nil {
		return fmt.Errorf("the field's id: %w", err)
	}
	d[n], err = json.Marshal(initial)
	return err
}

// value returns the initial default of a field; nil if it has none.
func (d defaults) value(f column.Field) (*column.Value, error) {
	raw := d[f.ID]
	if raw == nil {
		return nil, nil
	}
	v, err := defaultValue(raw, f.Type)
	if err != nil {
		return nil, fmt.Errorf("initial default %.100s of type %s: %w", raw, f.TypeName, err)
	}
	return &v, nil
}

// defaultValue decodes a value of type t (Iceberg spec, JSON single-value serialization).
func defaultValue(raw json.RawMessage, t arrow.DataType) (column.Value, error) {
	decoded, err := decodeNumbers(raw)
	if err != nil {
		return column.Value{}, err
	}
	var literal syntax.Literal
	switch v := decoded.(type) {
	case bool:
		literal = syntax.Literal{Kind: syntax.BoolLiteral, Value: strings.ToUpper(strconv.FormatBool(v))}
	case json.Number:
		literal = syntax.Literal{Kind: syntax.NumberLiteral, Value: strings.ToLower(v.String())}
	case string:
		if f, ok := notFinite(v, t); ok {
			return f, nil
		}
		literal, err = textLiteral(v, t)
	default:
		err = fmt.Errorf("only primitive types can have one: %w", errors.ErrUnsupported)
	}
	if err != nil {
		return column.Value{}, err
	}
	value, reason := column.Parse(literal, t)
	if reason != "" {
		return value, errors.New(reason)
	}
	return value, nil
}

// textLiteral returns the literal for a value of type t that JSON represents as a string.
func textLiteral(text string, t arrow.DataType) (syntax.Literal, error) {
	switch t.ID() {
	case arrow.DECIMAL128:
		return syntax.Literal{Kind: syntax.NumberLiteral, Value: strings.ToLower(text)}, nil
	case arrow.BINARY, arrow.FIXED_SIZE_BINARY:
		raw, err := hex.DecodeString(text)
		return syntax.Literal{Kind: syntax.BytesLiteral, Value: string(raw)}, err
	}
	return syntax.Literal{Kind: syntax.StringLiteral, Value: text}, nil
}

// notFinite parses infinities and NaN, in the spelling of Iceberg's Java library.
func notFinite(text string, t arrow.DataType) (column.Value, bool) {
	if row, ok := column.TypeOf(t); !ok || row.Kind != column.Float {
		return column.Value{}, false
	}
	switch text {
	case "NaN":
		return column.FloatValue(math.NaN()), true
	case "Infinity":
		return column.FloatValue(math.Inf(1)), true
	case "-Infinity":
		return column.FloatValue(math.Inf(-1)), true
	}
	return column.Value{}, false
}
