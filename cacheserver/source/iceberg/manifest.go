// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
)

// Manifests are Avro object container files: magic, metadata map, sync marker, blocks.
const (
	avroMagic  = "Obj\x01"
	avroSchema = "avro.schema"
)

// spellOut returns a manifest whose schema defines every fixed type where it is used. Avro defines a named type once and then refers
// to it by name; iceberg-go 0.7.0 does not resolve the name, and so treats the second decimal partition field of one precision, or
// the second uuid, as plain bytes. The data is not changed.
func spellOut(manifest []byte) ([]byte, error) {
	header, blocks, err := avroHeader(manifest)
	if err != nil {
		return nil, err
	}
	for i, entry := range header {
		if entry.key != avroSchema || !bytes.Contains(entry.value, []byte(`"fixed"`)) {
			continue
		}
		schema, err := decodeNumbers(entry.value)
		if err != nil {
			return nil, fmt.Errorf("its Avro schema: %w", err)
		}
		names := fixedTypes{}
		schema = names.spellOut(schema)
		if names.repeated == 0 {
			return manifest, nil
		}
		if header[i].value, err = json.Marshal(schema); err != nil {
			return nil, err
		}
		return append(appendAvroHeader(header), blocks...), nil
	}
	return manifest, nil
}

// fixedTypes holds the fixed types of an Avro schema.
type fixedTypes struct {
	byName   map[string]map[string]any
	repeated int
}

// spellOut returns the schema node with references to fixed types replaced by their definitions, each under a unique name.
func (f *fixedTypes) spellOut(node any) any {
	switch node := node.(type) {
	case string:
		if known, ok := f.byName[node]; ok {
			f.repeated++
			again := maps.Clone(known)
			again["name"] = fmt.Sprintf("%s_%d", node, f.repeated)
			return again
		}
	case []any: // a union
		for i := range node {
			node[i] = f.spellOut(node[i])
		}
	case map[string]any:
		f.spellOutType(node)
	}
	return node
}

func (f *fixedTypes) spellOutType(node map[string]any) {
	switch node["type"] {
	case "record":
		fields, _ := node["fields"].([]any)
		for _, field := range fields {
			if field, ok := field.(map[string]any); ok {
				field["type"] = f.spellOut(field["type"])
			}
		}
	case "array":
		node["items"] = f.spellOut(node["items"])
	case "map":
		node["values"] = f.spellOut(node["values"])
	case "fixed":
		if name, ok := node["name"].(string); ok {
			if f.byName == nil {
				f.byName = map[string]map[string]any{}
			}
			f.byName[name] = node
		}
	case "enum":
	default:
		node["type"] = f.spellOut(node["type"])
	}
}

// avroEntry is an entry of the metadata of an Avro file.
type avroEntry struct {
	key   string
	value []byte
}

var errAvroHeader = errors.New("its Avro header is cut off or corrupt")

// avroHeader returns the metadata of an Avro file, and the rest of the file.
func avroHeader(file []byte) (entries []avroEntry, rest []byte, err error) {
	rest, ok := bytes.CutPrefix(file, []byte(avroMagic))
	if !ok {
		return nil, nil, fmt.Errorf("it is no Avro file: %w", errAvroHeader)
	}
	for {
		var count int64
		if count, rest, err = avroLong(rest); err != nil {
			return nil, nil, err
		}
		if count == 0 {
			return entries, rest, nil
		}
		if count < 0 { // the block's size in bytes follows
			count = -count
			if _, rest, err = avroLong(rest); err != nil {
				return nil, nil, err
			}
		}
		for ; count > 0; count-- {
			var key, value []byte
			if key, rest, err = avroBytes(rest); err != nil {
				return nil, nil, err
			}
			if value, rest, err = avroBytes(rest); err != nil {
				return nil, nil, err
			}
			entries = append(entries, avroEntry{string(key), value})
		}
	}
}

func avroLong(data []byte) (v int64, rest []byte, err error) {
	v, n := binary.Varint(data)
	if n <= 0 {
		return 0, nil, errAvroHeader
	}
	return v, data[n:], nil
}

func avroBytes(data []byte) (v, rest []byte, err error) {
	n, rest, err := avroLong(data)
	if err != nil || n < 0 || n > int64(len(rest)) {
		return nil, nil, errAvroHeader
	}
	return rest[:n], rest[n:], nil
}

func appendAvroHeader(entries []avroEntry) []byte {
	out := []byte(avroMagic)
	out = binary.AppendVarint(out, int64(len(entries)))
	for _, e := range entries {
		for _, text := range [][]byte{[]byte(e.key), e.value} {
			out = append(binary.AppendVarint(out, int64(len(text))), text...)
		}
	}
	return binary.AppendVarint(out, 0)
}
