// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet/metadata"
)

// originKey is the key under which writers store the Arrow schema that they had, as an IPC message in base64.
const originKey = "ARROW:schema"

// maxOrigin bounds the length of a stored schema.
const maxOrigin = 1 << 20

// refine sets what the Arrow schema of a file's writer adds to the types of the columns: the length of lists, shapes of tensors, durations,
// and zones of timestamps. A schema that can't be read adds nothing. It is untrusted, and read here because arrow-go allocates whatever number of
// fields it claims to have; this reads only fields for columns that the file has.
func refine(columns []*fileColumn, stored metadata.KeyValueMetadata) {
	text := stored.FindValue(originKey)
	if text == nil || len(*text) > maxOrigin {
		return
	}
	message, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(*text, "="))
	if err != nil {
		return
	}
	before := cloned(columns)
	defer func() {
		if recover() != nil { // an offset pointed outside the message
			copy(columns, before)
		}
	}()
	const continuation = 0xFFFFFFFF
	if binary.LittleEndian.Uint32(message) == continuation {
		message = message[4:]
	}
	message = message[4:] // its length
	schema, ok := flatTable{message, int(binary.LittleEndian.Uint32(message))}.table(2)
	if !ok {
		return
	}
	for i, field := range schema.tables(1, len(columns)) {
		columns[i].refine(field)
	}
}

// Types of fields in Arrow's Schema.fbs.
const (
	flatTimestamp = 10
	flatStruct    = 13
	flatFixedList = 16
	flatDuration  = 18
)

var flatLists = []byte{12, flatFixedList, 21} // list, fixed-size list, large list

// refine refines a column by its Field of Schema.fbs: name, nullable, the type's number, the type, dictionary, children, metadata.
func (c *fileColumn) refine(field flatTable) {
	if field.text(0) != c.field.Name {
		return
	}
	c.refineType(field)
	c.refineTensor(field.value(6, extensionName), field.value(6, extensionMetadata))
}

func (c *fileColumn) refineType(field flatTable) {
	number := field.number8(2)
	of, ok := field.table(3)
	if !ok {
		return
	}
	switch own := c.field.Type.(type) {
	case *arrow.ListType:
		if !slices.Contains(flatLists, number) || len(c.kids) != 1 {
			return
		}
		if number == flatFixedList {
			c.size = max(of.number32(0), 0)
		}
		for i, kid := range field.tables(5, 1) {
			c.kids[i].refineType(kid)
		}
	case *arrow.StructType:
		if number != flatStruct {
			return
		}
		for i, kid := range field.tables(5, len(c.kids)) {
			c.kids[i].refine(kid)
		}
	case *arrow.Int64Type:
		if unit := arrow.TimeUnit(of.number16(0, int16(arrow.Millisecond))); number == flatDuration && unit >= arrow.Second && unit <= arrow.Nanosecond {
			c.origin = &arrow.DurationType{Unit: unit}
		}
	case *arrow.TimestampType:
		if zone := of.text(1); number == flatTimestamp && own.TimeZone != "" && zone != "" {
			c.origin = &arrow.TimestampType{Unit: own.Unit, TimeZone: zone}
		}
	}
}

// flatTable is a table of a flatbuffer. Its methods panic over places outside the buffer.
type flatTable struct {
	buffer []byte
	at     int
}

// slot is the place of a field; 0: the table has the field's default.
func (t flatTable) slot(i int) int {
	if t.buffer == nil {
		return 0
	}
	fields := t.at - int(int32(binary.LittleEndian.Uint32(t.buffer[t.at:])))
	entry := 4 + 2*i
	if entry >= int(binary.LittleEndian.Uint16(t.buffer[fields:])) {
		return 0
	}
	if offset := int(binary.LittleEndian.Uint16(t.buffer[fields+entry:])); offset > 0 {
		return t.at + offset
	}
	return 0
}

// follow returns the place that the offset at a place leads to.
func (t flatTable) follow(at int) int { return at + int(binary.LittleEndian.Uint32(t.buffer[at:])) }

func (t flatTable) table(i int) (flatTable, bool) {
	at := t.slot(i)
	if at == 0 {
		return flatTable{}, false
	}
	return flatTable{t.buffer, t.follow(at)}, true
}

// tables returns the tables of a vector, none if it has another number of them than the file has columns for.
func (t flatTable) tables(i, want int) []flatTable {
	at := t.slot(i)
	if at == 0 {
		return nil
	}
	vector := t.follow(at)
	if int(binary.LittleEndian.Uint32(t.buffer[vector:])) != want {
		return nil
	}
	out := make([]flatTable, want)
	for k := range out {
		out[k] = flatTable{t.buffer, t.follow(vector + 4 + 4*k)}
	}
	return out
}

// value returns the value of a key in a vector of KeyValue; "" if it is not there.
func (t flatTable) value(i int, key string) string {
	at := t.slot(i)
	if at == 0 {
		return ""
	}
	vector := t.follow(at)
	for k := range int(binary.LittleEndian.Uint32(t.buffer[vector:])) {
		if pair := (flatTable{t.buffer, t.follow(vector + 4 + 4*k)}); pair.text(0) == key {
			return pair.text(1)
		}
	}
	return ""
}

func (t flatTable) text(i int) string {
	at := t.slot(i)
	if at == 0 {
		return ""
	}
	text := t.follow(at)
	n := int(binary.LittleEndian.Uint32(t.buffer[text:]))
	return string(t.buffer[text+4:][:n])
}

func (t flatTable) number8(i int) byte {
	if at := t.slot(i); at > 0 {
		return t.buffer[at]
	}
	return 0
}

func (t flatTable) number16(i int, otherwise int16) int16 {
	if at := t.slot(i); at > 0 {
		return int16(binary.LittleEndian.Uint16(t.buffer[at:]))
	}
	return otherwise
}

func (t flatTable) number32(i int) int32 {
	if at := t.slot(i); at > 0 {
		return int32(binary.LittleEndian.Uint32(t.buffer[at:]))
	}
	return 0
}
