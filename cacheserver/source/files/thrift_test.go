// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
)

// spot is a value of a struct in Thrift's compact protocol that extreme replaces.
type spot struct {
	kind    byte // one of the types of the compact protocol
	at, end int  // its bytes; of a list, those of its header; of a boolean, the byte with its type
	items   int  // of a list
	of      byte // the type of a list's items
}

// Types of the compact protocol (Thrift specification, thrift-compact-protocol.md).
const (
	thriftTrue, thriftFalse, thriftByte, thriftI16, thriftI64       = 1, 2, 3, 4, 6
	thriftDouble, thriftBinary, thriftList, thriftSet, thriftStruct = 7, 8, 9, 10, 12
)

// walker lists the values of a struct.
type walker struct {
	text  []byte
	at    int
	spots []spot
}

// spotsOf returns the values in the struct at the start of text, nested ones included, and the struct's length.
func spotsOf(text []byte) (spots []spot, length int) {
	w := &walker{text: text}
	w.structure()
	return w.spots, w.at
}

func (w *walker) structure() {
	for {
		head := w.text[w.at]
		w.at++
		if head == 0 {
			return
		}
		if head>>4 == 0 {
			w.varint()
		}
		if kind := head & 0xf; kind == thriftTrue || kind == thriftFalse {
			w.add(spot{kind: kind, at: w.at - 1})
		} else {
			w.value(kind)
		}
	}
}

func (w *walker) add(s spot) {
	s.end = w.at
	w.spots = append(w.spots, s)
}

func (w *walker) varint() int {
	v, n := binary.Uvarint(w.text[w.at:])
	w.at += n
	return int(v)
}

func (w *walker) value(kind byte) {
	at := w.at
	switch {
	case kind <= thriftByte:
		w.at++
		w.add(spot{kind: thriftByte, at: at})
	case kind <= thriftI64:
		w.varint()
		w.add(spot{kind: kind, at: at})
	case kind == thriftDouble:
		w.at += 8
	case kind == thriftBinary:
		n := w.varint()
		w.at += n
		w.add(spot{kind: kind, at: at})
	case kind == thriftList || kind == thriftSet:
		head := w.text[w.at]
		w.at++
		items := int(head >> 4)
		if items == 15 {
			items = w.varint()
		}
		w.add(spot{kind: kind, at: at, items: items, of: head & 0xf})
		for range items {
			w.value(head & 0xf)
		}
	case kind == thriftStruct:
		w.structure()
	}
}

// extremes are numbers that a field is replaced by.
var extremes = []int64{
	0, 1, -1, 2, 3, 7, 8, 9, 100, math.MaxInt8, math.MinInt8, math.MaxInt16, math.MinInt16, math.MaxInt32, math.MinInt32, math.MaxInt32 - 1, math.MaxInt32 + 1,
	math.MaxUint32, 1 << 20, 1 << 25, 1 << 40, math.MaxInt64, math.MinInt64, math.MaxInt64 - 8,
}

// extreme returns text with one value replaced: a number by an extreme one or a neighbour, a boolean by the other one, a string by one that is
// empty, long, not UTF-8 or only announced, the length of a list by another one.
func extreme(r *rand.Rand, text []byte, s spot) []byte {
	number := extremes[r.IntN(len(extremes))]
	var with []byte
	switch s.kind {
	case thriftTrue, thriftFalse:
		with = []byte{text[s.at] ^ 3}
	case thriftByte:
		with = []byte{byte(number)}
	case thriftBinary:
		n, size := binary.Uvarint(text[s.at:])
		old := text[s.at+size:][:n]
		with = [][]byte{
			{0}, stringOf(slices.Repeat([]byte("long "), 20_000)), stringOf([]byte("\xff\xfe")), stringOf(append(slices.Clone(old), 0)),
			append(binary.AppendUvarint(nil, uint64(number)), old...), stringOf(slices.Repeat([]byte{0xff}, len(old))), stringOf(make([]byte, len(old))),
		}[r.IntN(7)]
	case thriftList, thriftSet:
		items := uint64([]int64{number, int64(s.items) + 1, int64(s.items) - 1, math.MaxInt32, 99 << 20}[r.IntN(5)])
		if with = binary.AppendUvarint([]byte{0xf0 | s.of}, items); items < 15 {
			with = []byte{byte(items)<<4 | s.of}
		}
	default:
		old, _ := binary.Varint(text[s.at:])
		with = binary.AppendVarint(nil, []int64{number, number, old + 1, old - 1, 2 * old, -old}[r.IntN(6)])
	}
	return slices.Concat(text[:s.at], with, text[s.end:])
}

func stringOf(b []byte) []byte { return append(binary.AppendUvarint(nil, uint64(len(b))), b...) }
