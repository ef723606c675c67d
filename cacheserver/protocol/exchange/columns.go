// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"errors"
	"fmt"
)

// Limits of the schema of a stream of columns. A flatbuffer may refer to one table many times, so that few bytes can describe very many
// fields.
const (
	mostFields = 10_000
	mostDepth  = 32
)

// Field slots and enum values of Schema.fbs that only columns need.
const (
	schemaFeatures    = 3
	listSizeSlot      = 0
	timezoneSlot      = 1
	typeIDsSlot       = 1
	typeTimestamp     = 10
	typeUnion         = 14
	typeFixedSizeList = 16
	mostListSize      = 1 << 31
)

// Columns is a record batch of any schema. Nodes and Buffers are those of the Arrow format, in the order of the schema's fields, depth
// first; buffers refer to the message's body.
type Columns struct {
	Rows    int64
	Nodes   []Node
	Buffers [][]byte
	// Used is the sum of the lengths of the buffers.
	Used int64
}

// Node is the FieldNode of one array.
type Node struct{ Length, Nulls int64 }

// CheckSchema checks that a general parser can read the schema of an Arrow IPC message in bounded time and memory: all offsets lead into the
// message, and it has at most 10,000 fields, nested at most 32 deep.
func CheckSchema(m Message) error {
	schema, err := open(m, headerSchema)
	if err == nil {
		err = checkFields(schema)
	}
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	return nil
}

func checkFields(schema table) error {
	endianness := schema.number(schemaEndianness, 2)
	checkKeyValues(schema, schemaMetadata)
	schema.vector(schemaFeatures, 8)
	left := mostFields
	if err := checkChildren(schema, schemaFields, mostDepth, 1, &left); err != nil {
		return err
	}
	if endianness != 0 && schema.err == nil {
		return errors.New("big-endian, want little-endian")
	}
	return schema.err
}

// checkChildren checks the fields in a vector; items is the number of slots of each for a slot of the root, left how many fields there may be.
func checkChildren(of table, slot, depth int, items int64, left *int) error {
	start, length := of.vector(slot, 4)
	if length > 0 && depth == 0 {
		return fmt.Errorf("fields nested more than %d deep", mostDepth)
	}
	for i := range length {
		if *left--; *left < 0 {
			return fmt.Errorf("more than %d fields", mostFields)
		}
		if err := checkField(of.indirect(start+4*i), depth-1, items, left); err != nil {
			return err
		}
	}
	return of.err
}

func checkField(field table, depth int, items int64, left *int) error {
	start, length := field.vector(fieldName, 1)
	checkKeyValues(field, fieldKeyValues)
	kind := field.number(fieldTypeType, 1)
	of, ok := field.child(fieldType)
	if field.err != nil {
		return field.err
	}
	name := field.bytes[start : start+length][:min(length, maxNameShown)]
	if _, dictionary := field.child(fieldDictionary); dictionary && field.err == nil {
		return fmt.Errorf("column %q is dictionary-encoded: send its values, in pyarrow column.cast(column.type.value_type)", name)
	}
	if !ok {
		return fmt.Errorf("column %q has no type", name)
	}
	for slot := range of.vtable { // two bytes are one field: the slots are half as many, and further ones are absent
		of.field(slot, 1)
	}
	if kind == typeTimestamp {
		of.vector(timezoneSlot, 1)
	}
	if kind == typeUnion {
		of.vector(typeIDsSlot, 4)
	}
	if kind == typeFixedSizeList {
		size := of.number(listSizeSlot, 4)
		if size < 0 || items*max(size, 1) >= mostListSize {
			return fmt.Errorf("column %q: lists of the fixed size %d: a row would have more than 2^31 items", name, size)
		}
		items *= max(size, 1)
	}
	if of.err != nil {
		return of.err
	}
	return checkChildren(field, fieldChildren, depth, items, left)
}

// checkKeyValues checks a vector of key-value pairs.
func checkKeyValues(of table, slot int) {
	start, length := of.vector(slot, 4)
	for i := range length {
		if of.err != nil {
			return
		}
		pair := of.indirect(start + 4*i)
		pair.vector(0, 1)
		pair.vector(1, 1)
	}
}

// IsSchema reports whether an Arrow IPC message is a schema rather than a batch.
func IsSchema(m Message) bool {
	message := root(m.Header)
	return message.number(messageHeaderType, 1) == headerSchema && message.err == nil
}

// ReadColumns returns the record batch of an Arrow IPC message. It checks that buffers are within the body, but not that they have the
// values that the lengths of nodes and the batch's schema need.
func ReadColumns(m Message) (c Columns, err error) {
	header, err := open(m, headerRecordBatch)
	if err == nil {
		c, err = readColumns(header, m.Body)
	}
	if err != nil {
		return Columns{}, fmt.Errorf("record batch: %w", err)
	}
	return c, nil
}

func readColumns(batch table, body []byte) (Columns, error) {
	compression, rows := batch.field(batchCompression, 4), batch.number(batchLength, 8)
	node, nodes := batch.vector(batchNodes, structSize)
	buffer, buffers := batch.vector(batchBuffers, structSize)
	_, variadic := batch.vector(batchVariadic, 8)
	switch {
	case batch.err != nil:
		return Columns{}, batch.err
	case compression >= 0:
		return Columns{}, errors.New("the body is compressed; send it uncompressed")
	case variadic != 0:
		return Columns{}, errors.New("columns of string or binary views: cast them to string or binary")
	case rows < 0:
		return Columns{}, fmt.Errorf("%d rows", rows)
	}
	c := Columns{Rows: rows, Nodes: make([]Node, nodes), Buffers: make([][]byte, buffers)}
	for i := range c.Nodes {
		at := node + i*structSize
		c.Nodes[i] = Node{Length: batch.int64At(at), Nulls: batch.int64At(at + 8)}
	}
	for i := range c.Buffers {
		var err error
		if c.Buffers[i], err = span(batch, buffer+i*structSize, body); err != nil {
			return Columns{}, fmt.Errorf("buffer %d: %w", i, err)
		}
		c.Used += int64(len(c.Buffers[i]))
	}
	return c, nil
}
