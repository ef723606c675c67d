// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"encoding/binary"
	"errors"
)

// errBounds says that an offset or length of a flatbuffer points outside it.
var errBounds = errors.New("an offset or length leads out of the message")

// buffer is a flatbuffer. After the first offset or length that leads out of it, err is set, and what is read is zero.
type buffer struct {
	bytes []byte
	err   error
}

// table is a flatbuffers table. Positions are indices into the buffer that have been checked to be within it. The table of a failed
// read has no fields.
type table struct {
	*buffer
	at     int
	vtable []byte // offsets of the fields, two bytes each
}

// root returns the table that a flatbuffer starts with.
func root(bytes []byte) table { return (&buffer{bytes: bytes}).indirect(0) }

// within reports whether n bytes at a position are within the buffer; otherwise it sets err.
func (b *buffer) within(position, n int) bool {
	if b.err == nil && (position < 0 || position > len(b.bytes)-n) { // fits: n is the width of a field or the length of a vtable, at most 65,535
		b.err = errBounds
	}
	return b.err == nil
}

// indirect returns the table that the offset at a position points to.
func (b *buffer) indirect(position int) table {
	at := b.follow(position)
	if !b.within(at, 4) {
		return table{buffer: b}
	}
	start := at - int(int32(binary.LittleEndian.Uint32(b.bytes[at:]))) // fits: at is within the message, the other has 32 bits
	if !b.within(start, 4) {
		return table{buffer: b}
	}
	size := int(binary.LittleEndian.Uint16(b.bytes[start:]))
	if size < 4 || size%2 != 0 || !b.within(start, size) {
		b.err = errBounds
		return table{buffer: b}
	}
	return table{buffer: b, at: at, vtable: b.bytes[start+4 : start+size]}
}

// follow returns the target of the unsigned offset at a position.
func (b *buffer) follow(position int) int {
	if !b.within(position, 4) {
		return 0
	}
	return position + int(binary.LittleEndian.Uint32(b.bytes[position:])) // int has 64 bits; what reads there checks it
}

// field returns the position of a field of width bytes, -1 if the table lacks it.
func (t table) field(slot, width int) int {
	if 2*slot >= len(t.vtable) {
		return -1
	}
	offset := int(binary.LittleEndian.Uint16(t.vtable[2*slot:]))
	if offset == 0 || !t.within(t.at+offset, width) {
		return -1
	}
	return t.at + offset
}

// number returns an integer field of 1, 2, 4 or 8 bytes, 0 if the table lacks it.
func (t table) number(slot, width int) int64 {
	at := t.field(slot, width)
	if at < 0 {
		return 0
	}
	switch b := t.bytes[at:]; width {
	case 1:
		return int64(b[0])
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	default:
		return int64(binary.LittleEndian.Uint64(b))
	}
}

// child returns a field that is a table; ok is false if the table lacks it.
func (t table) child(slot int) (child table, ok bool) {
	at := t.field(slot, 4)
	if at < 0 {
		return table{buffer: t.buffer}, false
	}
	return t.indirect(at), true
}

// vector returns the position and length of a field that is a vector; all its elements are within the buffer.
func (t table) vector(slot, width int) (start, length int) {
	at := t.field(slot, 4)
	if at < 0 {
		return 0, 0
	}
	if at = t.follow(at); !t.within(at, 4) {
		return 0, 0
	}
	n := int64(binary.LittleEndian.Uint32(t.bytes[at:]))
	if start = at + 4; n > int64((len(t.bytes)-start)/width) { // fits: start is within the message
		t.err = errBounds
		return 0, 0
	}
	return start, int(n)
}

// int64At returns a number of a struct in a vector.
func (t table) int64At(position int) int64 {
	return int64(binary.LittleEndian.Uint64(t.bytes[position:]))
}
