// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"encoding/binary"
	"errors"
)

// errBounds says that an offset or length of a flatbuffer points outside it.
var errBounds = errors.New("an offset or length leads out of the message")

// table is a flatbuffers table. Positions are indices into buf that have been checked to be within it.
type table struct {
	buf    []byte
	at     int
	vtable []byte // offsets of the fields, two bytes each
}

// root returns the table that a flatbuffer starts with.
func root(buf []byte) (table, error) { return indirect(buf, 0) }

// indirect returns the table that the offset at a position points to.
func indirect(buf []byte, position int) (table, error) {
	at, err := follow(buf, position)
	if err != nil {
		return table{}, err
	}
	if at > len(buf)-4 {
		return table{}, errBounds
	}
	start := at - int(int32(binary.LittleEndian.Uint32(buf[at:])))
	if start < 0 || start > len(buf)-4 {
		return table{}, errBounds
	}
	size := int(binary.LittleEndian.Uint16(buf[start:]))
	if size < 4 || size%2 != 0 || size > len(buf)-start {
		return table{}, errBounds
	}
	return table{buf: buf, at: at, vtable: buf[start+4 : start+size]}, nil
}

// follow returns the target of the unsigned offset at a position.
func follow(buf []byte, position int) (int, error) {
	if position < 0 || position > len(buf)-4 {
		return 0, errBounds
	}
	to := int64(position) + int64(binary.LittleEndian.Uint32(buf[position:]))
	if to > int64(len(buf)) {
		return 0, errBounds
	}
	return int(to), nil
}

// field returns the position of a field of width bytes, -1 if the table lacks it.
func (t table) field(slot, width int) (int, error) {
	if 2*slot >= len(t.vtable) {
		return -1, nil
	}
	offset := int(binary.LittleEndian.Uint16(t.vtable[2*slot:]))
	if offset == 0 {
		return -1, nil
	}
	if offset+width > len(t.buf)-t.at {
		return 0, errBounds
	}
	return t.at + offset, nil
}

// number returns an integer field of 1, 2, 4 or 8 bytes, 0 if the table lacks it.
func (t table) number(slot, width int) (int64, error) {
	at, err := t.field(slot, width)
	if err != nil || at < 0 {
		return 0, err
	}
	switch b := t.buf[at:]; width {
	case 1:
		return int64(b[0]), nil
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b))), nil
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b))), nil
	default:
		return int64(binary.LittleEndian.Uint64(b)), nil
	}
}

// child returns a field that is a table.
func (t table) child(slot int) (child table, ok bool, err error) {
	at, err := t.field(slot, 4)
	if err != nil || at < 0 {
		return table{}, false, err
	}
	child, err = indirect(t.buf, at)
	return child, err == nil, err
}

// vector returns the position and length of a field that is a vector; all its elements are within the buffer.
func (t table) vector(slot, width int) (start, length int, err error) {
	at, err := t.field(slot, 4)
	if err != nil || at < 0 {
		return 0, 0, err
	}
	if at, err = follow(t.buf, at); err != nil {
		return 0, 0, err
	}
	if at > len(t.buf)-4 {
		return 0, 0, errBounds
	}
	n := int64(binary.LittleEndian.Uint32(t.buf[at:]))
	if start = at + 4; n > int64((len(t.buf)-start)/width) {
		return 0, 0, errBounds
	}
	return start, int(n), nil
}

// int64At returns a number of a struct in a vector.
func (t table) int64At(position int) int64 {
	return int64(binary.LittleEndian.Uint64(t.buf[position:]))
}
