// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"errors"
)

// header is a page header (Parquet format, PageHeader), with fields indexed by their Thrift ids.
type header struct {
	page fields
	data fields // fields of its DataPageHeader, DataPageHeaderV2 or DictionaryPageHeader
}

// Thrift field ids of PageHeader.
const (
	pageKind         = 1
	pageUncompressed = 2
	pageCompressed   = 3
	pageCRC          = 4
	pageDataV1       = 5
	pageDictionary   = 7
	pageDataV2       = 8
)

// Values of pageKind.
const (
	kindDataV1     = 0
	kindDictionary = 2
	kindDataV2     = 3
)

// Thrift field ids of the nested headers.
const (
	dataValues = 1 // in the headers of all three kinds of pages

	v1Encoding    = 2 // also in the header of a dictionary page
	v1DefEncoding = 3
	v1RepEncoding = 4

	v2Encoding   = 4
	v2DefBytes   = 5
	v2RepBytes   = 6
	v2Compressed = 7
)

// fields holds the numbers and booleans of a Thrift struct.
type fields struct {
	known uint
	value [10]int64
}

func (f *fields) set(id int16, v int64) {
	if 0 <= id && int(id) < len(f.value) {
		f.known |= 1 << id
		f.value[id] = v
	}
}

func (f *fields) has(ids ...int) bool {
	for _, id := range ids {
		if f.known&(1<<id) == 0 {
			return false
		}
	}
	return true
}

var (
	errShort  = errors.New("a page header ends early")
	errHeader = corrupt("page header")
)

// parseHeader parses the header at the start of text and returns its length. The error is errShort if the header may continue after
// text.
func parseHeader(text []byte) (h header, size int, err error) {
	p := &compact{text: text}
	p.structure(&h.page, &h.data, 0)
	switch {
	case p.bad:
		return header{}, 0, errHeader
	case p.short:
		return header{}, 0, errShort
	}
	return h, len(text) - len(p.text), nil // fits: p.text is a suffix of text
}

// compact parses Thrift's compact protocol (Thrift specification, thrift-compact-protocol.md). After the first error it returns
// zeros.
type compact struct {
	text  []byte
	short bool // text ended
	bad   bool
}

// The types of the compact protocol.
const (
	typeTrue   = 1
	typeFalse  = 2
	typeByte   = 3
	typeI64    = 6
	typeDouble = 7
	typeBinary = 8
	typeList   = 9
	typeSet    = 10
	typeMap    = 11
	typeStruct = 12
)

const deepest = 16 // maximum nesting of structs and lists

// structure parses a struct: its numbers and booleans to f, those of nested page headers to kid. Both may be nil.
func (p *compact) structure(f, kid *fields, depth int) {
	id := int16(0)
	for !p.failed() {
		head := p.byte()
		kind := head & 0xf
		if kind == 0 {
			return
		}
		if delta := int16(head >> 4); delta > 0 {
			id += delta
		} else {
			id = int16(unzigzag(p.uvarint()))
		}
		switch {
		case kid != nil && kind <= typeI64 && id >= pageDataV1 && id <= pageDataV2: // all of these are structs
			p.bad = true
		case f != nil && kind <= typeFalse && id == v2Compressed: // is_compressed, the only boolean field that is needed
			f.set(id, int64(2-kind))
		case f != nil && kind > typeByte && kind <= typeI64:
			f.set(id, int64(unzigzag(p.uvarint())))
		case kid != nil && kind == typeStruct && (id == pageDataV1 || id == pageDictionary || id == pageDataV2):
			p.structure(kid, nil, depth+1)
		default:
			p.skip(kind, depth)
		}
	}
}

// skip skips a field's value.
func (p *compact) skip(kind byte, depth int) {
	if depth > deepest {
		p.bad = true
	}
	switch {
	case p.failed() || kind == typeTrue || kind == typeFalse:
	case kind == typeByte:
		p.pass(1)
	case kind <= typeI64:
		p.uvarint()
	case kind == typeDouble:
		p.pass(8)
	case kind == typeBinary:
		p.pass(p.uvarint())
	case kind == typeList || kind == typeSet:
		head := p.byte()
		n := uint64(head >> 4)
		if n == 15 {
			n = p.uvarint()
		}
		p.items(n, head&0xf, depth)
	case kind == typeStruct:
		p.structure(nil, nil, depth+1)
	default: // page headers contain no maps
		p.bad = true
	}
}

// items skips the items of a list, where booleans take a byte.
func (p *compact) items(n uint64, kind byte, depth int) {
	if kind == typeTrue || kind == typeFalse {
		kind = typeByte
	}
	for ; n > 0 && !p.failed(); n-- {
		p.skip(kind, depth+1)
	}
}

func (p *compact) failed() bool { return p.short || p.bad }

func (p *compact) byte() byte {
	if len(p.text) == 0 {
		p.short = true
		return 0
	}
	b := p.text[0]
	p.text = p.text[1:]
	return b
}

func (p *compact) uvarint() uint64 {
	v, n := binary.Uvarint(p.text)
	switch {
	case n == 0:
		p.short = true
	case n < 0:
		p.bad = true
	default:
		p.text = p.text[n:]
	}
	return v
}

func (p *compact) pass(n uint64) {
	if n > uint64(len(p.text)) {
		p.short = true
		return
	}
	p.text = p.text[n:]
}
