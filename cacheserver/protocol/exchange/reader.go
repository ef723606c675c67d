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
func (r Rows) At(i int) int64 { return int64(binary.LittleEndian.Uint64(r.values[i*rowWidth:])) }

// Schema checks that an Arrow IPC message is a schema with a single int64 column named row.
func Schema(m Message) error {
	kind, header, err := open(m)
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	if kind != headerSchema {
		return fmt.Errorf("message of type %d, %s", kind, wantHeader)
	}
	if err := checkSchema(header); err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	return nil
}

// Batch returns the rows of an Arrow IPC message, which must be a record batch of the schema that Schema checked.
func Batch(m Message) (Rows, error) {
	kind, header, err := open(m)
	if err != nil {
		return Rows{}, fmt.Errorf("record batch: %w", err)
	}
	if kind != headerRecordBatch {
		return Rows{}, fmt.Errorf("message of type %d, %s", kind, wantHeader)
	}
	rows, err := readBatch(header, m.Body)
	if err != nil {
		return Rows{}, fmt.Errorf("record batch: %w", err)
	}
	return rows, nil
}

// open parses the start of an Arrow IPC message: its type and the table of its header.
func open(m Message) (kind int64, header table, err error) {
	message, err := root(m.Header)
	if err != nil {
		return 0, table{}, err
	}
	version, err := message.number(messageVersion, 2)
	if err != nil {
		return 0, table{}, err
	}
	if version != metadataV4 && version != metadataV5 {
		return 0, table{}, fmt.Errorf("metadata version V%d, %s", version+1, wantVersion)
	}
	length, err := message.number(messageBodyLength, 8)
	if err != nil {
		return 0, table{}, err
	}
	if length < 0 || length > int64(len(m.Body)) {
		return 0, table{}, fmt.Errorf("a body of %d bytes announced, %d came", length, len(m.Body))
	}
	if _, _, err := message.vector(messageMetadata, 4); err != nil {
		return 0, table{}, err
	}
	if kind, err = message.number(messageHeaderType, 1); err != nil {
		return 0, table{}, err
	}
	header, ok, err := message.child(messageHeader)
	if err == nil && !ok {
		err = errors.New("the message has no header")
	}
	return kind, header, err
}

func checkSchema(schema table) error {
	endianness, err := schema.number(schemaEndianness, 2)
	if err != nil {
		return err
	}
	if endianness != 0 {
		return errors.New("big-endian, want little-endian")
	}
	if _, _, err := schema.vector(schemaMetadata, 4); err != nil {
		return err
	}
	start, columns, err := schema.vector(schemaFields, 4)
	if err != nil {
		return err
	}
	if columns != 1 {
		return fmt.Errorf("%d columns, %s", columns, wantColumn)
	}
	column, err := indirect(schema.buf, start)
	if err != nil {
		return err
	}
	return checkColumn(column)
}

func checkColumn(column table) error {
	start, length, err := column.vector(fieldName, 1)
	if err != nil {
		return err
	}
	if name := column.buf[start : start+length]; string(name) != rowName {
		return fmt.Errorf("column %q, %s", name[:min(length, maxNameShown)], wantColumn)
	}
	if _, _, err := column.vector(fieldKeyValues, 4); err != nil {
		return err
	}
	_, children, err := column.vector(fieldChildren, 4)
	if err != nil {
		return err
	}
	dictionary, err := column.field(fieldDictionary, 4)
	if err != nil {
		return err
	}
	if dictionary >= 0 {
		return fmt.Errorf("column row is dictionary-encoded, %s", wantColumn)
	}
	kind, err := column.number(fieldTypeType, 1)
	if err != nil {
		return err
	}
	if kind != typeInt || children != 0 {
		return fmt.Errorf("column row is of Arrow type %d with %d children, %s", kind, children, wantColumn)
	}
	return checkType(column)
}

func checkType(column table) error {
	integer, ok, err := column.child(fieldType)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("column row has no type, %s", wantColumn)
	}
	width, err := integer.number(intBitWidth, 4)
	if err != nil {
		return err
	}
	signed, err := integer.number(intIsSigned, 1)
	if err != nil {
		return err
	}
	if width != 8*rowWidth || signed == 0 {
		return fmt.Errorf("column row is an integer of %d bits, signed: %v; %s", width, signed != 0, wantColumn)
	}
	return nil
}

func readBatch(batch table, body []byte) (Rows, error) {
	compression, err := batch.field(batchCompression, 4)
	if err != nil {
		return Rows{}, err
	}
	if compression >= 0 {
		return Rows{}, errors.New("the body is compressed; send it uncompressed")
	}
	rows, err := batch.number(batchLength, 8)
	if err != nil {
		return Rows{}, err
	}
	node, nodes, err := batch.vector(batchNodes, structSize)
	if err != nil {
		return Rows{}, err
	}
	buffer, buffers, err := batch.vector(batchBuffers, structSize)
	if err != nil {
		return Rows{}, err
	}
	_, variadic, err := batch.vector(batchVariadic, 8)
	if err != nil {
		return Rows{}, err
	}
	if nodes != 1 || variadic != 0 || buffers != buffersOfAColumn {
		return Rows{}, fmt.Errorf("%d nodes and %d buffers, %s", nodes, buffers, wantColumn)
	}
	if length := batch.int64At(node); rows < 0 || length != rows {
		return Rows{}, fmt.Errorf("a column of %d values in a batch of %d rows", length, rows)
	}
	if nulls := batch.int64At(node + 8); nulls != 0 {
		return Rows{}, fmt.Errorf("%d nulls: nulls are no row indices", nulls)
	}
	if _, err := span(batch, buffer, body); err != nil {
		return Rows{}, fmt.Errorf("validity: %w", err)
	}
	values, err := span(batch, buffer+structSize, body)
	if err != nil {
		return Rows{}, fmt.Errorf("values: %w", err)
	}
	if rows > int64(len(values)/rowWidth) {
		return Rows{}, fmt.Errorf("values: %d bytes for %d rows", len(values), rows)
	}
	return Rows{values[:rows*rowWidth]}, nil
}

// span returns the range of the body that a Buffer struct describes.
func span(batch table, at int, body []byte) ([]byte, error) {
	offset, length := batch.int64At(at), batch.int64At(at+8)
	if offset < 0 || length < 0 || offset > int64(len(body)) || length > int64(len(body))-offset {
		return nil, fmt.Errorf("%d bytes at %d in a body of %d", length, offset, len(body))
	}
	return body[offset : offset+length], nil
}
