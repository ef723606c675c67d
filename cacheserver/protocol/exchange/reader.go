// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Field slots of the tables in Message.fbs and Schema.fbs of the Arrow format.
const (
	messageVersion    = 0
	messageHeaderType = 1
	messageHeader     = 2
	messageBodyLength = 3
	messageMetadata   = 4

	schemaEndianness = 0
	schemaFields     = 1
	schemaMetadata   = 2

	fieldName       = 0
	fieldTypeType   = 2
	fieldType       = 3
	fieldDictionary = 4
	fieldChildren   = 5
	fieldKeyValues  = 6

	intBitWidth = 0
	intIsSigned = 1

	batchLength      = 0
	batchNodes       = 1
	batchBuffers     = 2
	batchCompression = 3
	batchVariadic    = 4
)

// Enum values of the Arrow format.
const (
	metadataV4, metadataV5  = 3, 4
	headerSchema            = 1
	headerRecordBatch       = 3
	typeInt                 = 2
	structSize              = 16 // of the structs FieldNode and Buffer: two int64
	rowName                 = "row"
	rowWidth                = 8
	buffersOfAColumn        = 2 // validity bitmap and values
	maxNameShown            = 64
	wantColumn              = "want batches of one int64 column named row"
	wantHeader, wantVersion = "want a schema, then record batches", "want V4 or V5"
)

// Rows are the row indices of one record batch; it refers to the message's body.
type Rows struct{ values []byte }

// Len is the number of row indices.
func (r Rows) Len() int { return len(r.values) / rowWidth }

// At returns the i-th row index.
func (r Rows) At(i int) int64 { return int64(binary.LittleEndian.Uint64(r.values[i*rowWidth:])) } // fits: i is below Len

// Schema checks that an Arrow IPC message is a schema with a single int64 column named row.
func Schema(m Message) error {
	header, err := open(m, headerSchema)
	if err == nil {
		err = checkSchema(header)
	}
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	return nil
}

// Batch returns the rows of an Arrow IPC message, which must be a record batch of the schema that Schema checked.
func Batch(m Message) (rows Rows, err error) {
	header, err := open(m, headerRecordBatch)
	if err == nil {
		rows, err = readBatch(header, m.Body)
	}
	if err != nil {
		return Rows{}, fmt.Errorf("record batch: %w", err)
	}
	return rows, nil
}

// open parses the start of an Arrow IPC message, which must be of the type wanted, and returns the table of its header.
func open(m Message, want int64) (table, error) {
	message := root(m.Header)
	version, length, kind := message.number(messageVersion, 2), message.number(messageBodyLength, 8), message.number(messageHeaderType, 1)
	message.vector(messageMetadata, 4)
	header, ok := message.child(messageHeader)
	switch {
	case message.err != nil:
		return table{}, message.err
	case version != metadataV4 && version != metadataV5:
		return table{}, fmt.Errorf("metadata version V%d, %s", version+1, wantVersion)
	case length < 0 || length > int64(len(m.Body)):
		return table{}, fmt.Errorf("a body of %d bytes announced, %d came", length, len(m.Body))
	case !ok:
		return table{}, errors.New("the message has no header")
	case kind != want:
		return table{}, fmt.Errorf("message of type %d, %s", kind, wantHeader)
	}
	return header, nil
}

func checkSchema(schema table) error {
	endianness := schema.number(schemaEndianness, 2)
	schema.vector(schemaMetadata, 4)
	start, columns := schema.vector(schemaFields, 4)
	switch {
	case schema.err != nil:
		return schema.err
	case endianness != 0:
		return errors.New("big-endian, want little-endian")
	case columns != 1:
		return fmt.Errorf("%d columns, %s", columns, wantColumn)
	}
	return checkColumn(schema.indirect(start))
}

func checkColumn(column table) error {
	start, length := column.vector(fieldName, 1)
	column.vector(fieldKeyValues, 4)
	_, children := column.vector(fieldChildren, 4)
	dictionary, kind := column.field(fieldDictionary, 4), column.number(fieldTypeType, 1)
	integer, ok := column.child(fieldType)
	if column.err != nil {
		return column.err
	}
	name := column.bytes[start : start+length]
	switch {
	case string(name) != rowName:
		return fmt.Errorf("column %q, %s", name[:min(length, maxNameShown)], wantColumn)
	case dictionary >= 0:
		return fmt.Errorf("column row is dictionary-encoded, %s", wantColumn)
	case kind != typeInt || children != 0:
		return fmt.Errorf("column row is of Arrow type %d with %d children, %s", kind, children, wantColumn)
	case !ok:
		return fmt.Errorf("column row has no type, %s", wantColumn)
	}
	width, signed := integer.number(intBitWidth, 4), integer.number(intIsSigned, 1)
	if integer.err == nil && (width != 8*rowWidth || signed == 0) {
		return fmt.Errorf("column row is an integer of %d bits, signed: %v; %s", width, signed != 0, wantColumn)
	}
	return integer.err
}

func readBatch(batch table, body []byte) (Rows, error) {
	c, err := readColumns(batch, body)
	switch {
	case err != nil:
		return Rows{}, err
	case len(c.Nodes) != 1 || len(c.Buffers) != buffersOfAColumn:
		return Rows{}, fmt.Errorf("%d nodes and %d buffers, %s", len(c.Nodes), len(c.Buffers), wantColumn)
	case c.Nodes[0].Length != c.Rows:
		return Rows{}, fmt.Errorf("a column of %d values in a batch of %d rows", c.Nodes[0].Length, c.Rows)
	case c.Nodes[0].Nulls != 0:
		return Rows{}, fmt.Errorf("%d nulls: nulls are no row indices", c.Nodes[0].Nulls)
	}
	values := c.Buffers[1]
	if c.Rows > int64(len(values)/rowWidth) {
		return Rows{}, fmt.Errorf("values: %d bytes for %d rows", len(values), c.Rows)
	}
	return Rows{values[:c.Rows*rowWidth]}, nil // fits: c.Rows was compared with the quotient
}

// span returns the range of the body that a Buffer struct describes.
func span(batch table, at int, body []byte) ([]byte, error) {
	offset, length := batch.int64At(at), batch.int64At(at+8)
	if offset < 0 || length < 0 || offset > int64(len(body)) || length > int64(len(body))-offset { // fits: offset is at most len(body)
		return nil, fmt.Errorf("%d bytes at %d in a body of %d", length, offset, len(body))
	}
	return body[offset : offset+length], nil
}
