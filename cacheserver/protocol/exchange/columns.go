// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"errors"
	"fmt"
)

// Limits of the schema of a stream of columns. A flatbuffer may refer to one table or string many times, so that few bytes can describe very many
// fields and very long names.
const (
	mostFields = 10_000
	mostDepth  = 32
	mostText   = 4 << 20
)

// Field slots and enum values of Schema.fbs that only columns need.
const (
	schemaFeatures    = 3
	listSizeSlot      = 0
	timezoneSlot      = 1
	typeTimestamp     = 10
	typeUnion         = 14
	typeFixedSizeList = 16
	mostListSize      = 1 << 31
	pairBytes         = 32 // memory of a key-value pair besides its text
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

// SchemaSize is the size of a schema once it is parsed, however often its message refers to the same bytes.
type SchemaSize struct {
	Fields int
	// Text is the number of bytes of paths (the names of a field and of those that it is in), time zones and metadata.
	Text int64
}

// CheckSchema checks that a general parser can read the schema of an Arrow IPC message in bounded time and memory: all offsets lead into the
// message, and it has at most 10,000 fields, nested at most 32 deep, and 4 MiB of text.
func CheckSchema(m Message) (SchemaSize, error) {
	var size SchemaSize
	schema, err := open(m, headerSchema)
	if err == nil {
		err = size.checkSchema(schema)
	}
	if err != nil {
		return SchemaSize{}, fmt.Errorf("schema: %w", err)
	}
	return size, nil
}

func (s *SchemaSize) checkSchema(schema table) error {
	endianness := schema.number(schemaEndianness, 2)
	if err := s.addKeyValues(schema, schemaMetadata); err != nil {
		return err
	}
	schema.vector(schemaFeatures, 8)
	if err := s.addChildren(schema, schemaFields, parent{depth: mostDepth, items: 1}); err != nil {
		return err
	}
	if endianness != 0 && schema.err == nil {
		return errors.New("big-endian, want little-endian")
	}
	return schema.err
}

// parent is what is known of a field when its children are checked.
type parent struct {
	depth int   // how deep its children may be nested
	items int64 // slots for a slot of the root
	path  int64 // bytes
}

// addText counts bytes of text.
func (s *SchemaSize) addText(bytes int64) error {
	if bytes > mostText-s.Text { // fits: s.Text is at most mostText
		return fmt.Errorf("more than %d MiB of names and metadata, each counted where it is used", mostText>>20)
	}
	s.Text += bytes
	return nil
}

// addChildren checks and counts the fields in a vector.
func (s *SchemaSize) addChildren(of table, slot int, in parent) error {
	start, length := of.vector(slot, 4)
	if length > 0 && in.depth == 0 {
		return fmt.Errorf("fields nested more than %d deep", mostDepth)
	}
	in.depth--
	for i := range length {
		if s.Fields++; s.Fields > mostFields {
			return fmt.Errorf("more than %d fields", mostFields)
		}
		if err := s.addField(of.indirect(start+4*i), in); err != nil {
			return err
		}
	}
	return of.err
}

func (s *SchemaSize) addField(field table, in parent) error {
	start, length := field.vector(fieldName, 1)
	kind := field.number(fieldTypeType, 1)
	of, ok := field.child(fieldType)
	if field.err != nil {
		return field.err
	}
	name := field.bytes[start : start+length][:min(length, maxNameShown)]
	in.path += int64(length) + 1
	if err := s.addText(in.path); err != nil {
		return err
	}
	if err := s.addKeyValues(field, fieldKeyValues); err != nil {
		return err
	}
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
		_, zone := of.vector(timezoneSlot, 1)
		if err := s.addText(int64(zone)); err != nil {
			return err
		}
	}
	if kind == typeUnion && of.err == nil {
		return fmt.Errorf("column %q is a union: make a struct of it", name)
	}
	if kind == typeFixedSizeList {
		size := of.number(listSizeSlot, 4)
		if size < 0 || max(size, 1) > (mostListSize-1)/in.items {
			return fmt.Errorf("column %q: lists of the fixed size %d: a row would have more than 2^31 items", name, size)
		}
		in.items *= max(size, 1)
	}
	if of.err != nil {
		return of.err
	}
	return s.addChildren(field, fieldChildren, in)
}

// addKeyValues checks and counts a vector of key-value pairs.
func (s *SchemaSize) addKeyValues(of table, slot int) error {
	start, length := of.vector(slot, 4)
	for i := range length {
		pair := of.indirect(start + 4*i)
		_, key := pair.vector(0, 1)
		_, value := pair.vector(1, 1)
		if of.err != nil {
			return of.err
		}
		if err := s.addText(int64(key) + int64(value) + pairBytes); err != nil {
			return err
		}
	}
	return of.err
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
		at := node + i*structSize // fits: the vector is within the message
		c.Nodes[i] = Node{Length: batch.int64At(at), Nulls: batch.int64At(at + 8)}
	}
	for i := range c.Buffers {
		var err error
		if c.Buffers[i], err = span(batch, buffer+i*structSize, body); err != nil { // fits: the vector is within the message
			return Columns{}, fmt.Errorf("buffer %d: %w", i, err)
		}
		c.Used += int64(len(c.Buffers[i]))
	}
	return c, nil
}
