// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
)

// pages reads the pages of a column chunk in order, checks their CRCs and uncompresses them.
//
// A page is valid until the next one is read; a dictionary is valid until the first data page that does not use it.
type pages struct {
	from    io.ReaderAt
	at, end int64
	then    *Pages         // pages to read after end; nil: none
	most    int64          // maximum uncompressed size of a page
	codec   compress.Codec // nil: pages are uncompressed
	streams bool           // codec can uncompress a page as a stream, see stream
	mem     memory.Allocator

	room     func(bytes int64) error // Chunk.Room
	held     int64                   // of room, for body and plain
	heldKept int64                   // of room, for the dictionary

	checked bool // a data page was read,
	summed  bool // and it had a CRC, so all of them must have one

	window int64  // Chunk.Window
	have   []byte // bytes of the file at offset start
	start  int64
	buffer []byte // the memory of have, unless it is the file's own

	body  []byte   // a page's body that is not within have
	plain []byte   // uncompressed
	kept  [][]byte // memory of the dictionary

	dictionaryAt int64 // offset of the dictionary page
	dropped      bool  // the dictionary's memory was freed, see dropDictionary
}

const (
	windowBytes = 64 << 10 // length of a read for headers and small pages, unless it is given
	mostHeader  = 16 << 20 // headers are long if they have long statistics
	largeBytes  = 4 << 20  // bodies of this size or more are uncompressed as a stream, if the codec can

	stretchBytes = 8  // of a value of a decoded dictionary
	lengthsBytes = 8  // of a value of a page that has the lengths of all values first: of prefix and suffix
	sliceBytes   = 24 // of a value of a dictionary that arrow-go decodes
)

// page is a page with values, of any kind.
type page struct {
	kind     int64
	n        int // values, nulls included
	encoding parquet.Encoding

	defEncoding, repEncoding parquet.Encoding // of version 1, whose levels are in data

	reps, defs []byte // levels of version 2
	data       []byte // uncompressed
}

// usesDictionary reports whether the page's values are indices into the dictionary.
func (p *page) usesDictionary() bool {
	return p.encoding == parquet.Encodings.RLEDict || p.encoding == parquet.Encodings.PlainDict
}

// next returns the next page, or io.EOF.
func (p *pages) next() (page, error) {
	for {
		if p.at >= p.end && p.then != nil {
			p.at, p.end, p.then = p.then.Offset, p.then.Offset+p.then.Length, nil
		}
		if p.at >= p.end {
			return page{}, io.EOF
		}
		at := p.at
		pg, err := p.read()
		if err != nil {
			return page{}, fmt.Errorf("page at offset %d: %w", at, err)
		}
		if pg.kind == kindDataV1 || pg.kind == kindDataV2 || pg.kind == kindDictionary {
			return pg, nil
		}
	}
}

// read reads the page at p.at.
func (p *pages) read() (page, error) {
	at := p.at
	h, err := p.header()
	if err != nil {
		return page{}, err
	}
	size := h.page.value[pageUncompressed]
	if size < 0 || size > p.most {
		return page{}, corrupt("%d bytes uncompressed where its column chunk has %d", size, p.most)
	}
	pg, err := h.describe()
	if err != nil {
		return page{}, err
	}
	if pg.kind == kindDictionary {
		p.dictionaryAt = at
	}
	if (pg.kind == kindDataV1 || pg.kind == kindDataV2) && !pg.usesDictionary() {
		p.dropDictionary()
	}
	if err := p.reserve(&pg, h.page.value[pageCompressed], size); err != nil {
		return page{}, err
	}
	err = p.content(&pg, &h, int(size))
	return pg, err
}

// content reads and uncompresses the body of a page whose header was read.
func (p *pages) content(pg *page, h *header, size int) (err error) {
	if p.streamed(pg, h.page.value[pageCompressed]) {
		pg.data, err = p.stream(h, size)
	} else {
		err = p.whole(pg, h, size)
	}
	if err == nil && pg.kind == kindDictionary {
		pg.data = p.keep(pg.data)
	}
	return err
}

// describe returns the page of a header, without its content.
func (h *header) describe() (page, error) {
	d := &h.data
	pg := page{kind: h.page.value[pageKind], n: int(d.value[dataValues]), encoding: parquet.Encoding(d.value[v1Encoding])}
	complete := true
	switch pg.kind {
	case kindDataV2:
		pg.encoding = parquet.Encoding(d.value[v2Encoding])
		reps, defs, room := d.value[v2RepBytes], d.value[v2DefBytes], min(h.page.value[pageCompressed], h.page.value[pageUncompressed])
		complete = d.has(dataValues, v2Encoding, v2RepBytes, v2DefBytes) && reps >= 0 && reps <= room && defs >= 0 && defs <= room-reps // fits: reps is at most room
	case kindDataV1:
		pg.defEncoding, pg.repEncoding = parquet.Encoding(d.value[v1DefEncoding]), parquet.Encoding(d.value[v1RepEncoding])
		complete = d.has(dataValues, v1Encoding, v1DefEncoding, v1RepEncoding)
	case kindDictionary:
		complete = d.has(dataValues, v1Encoding)
	}
	if pg.n < 0 || !complete {
		return page{}, errHeader
	}
	return pg, nil
}

// streamed reports whether the body of a page, length bytes, is uncompressed as a stream.
func (p *pages) streamed(pg *page, length int64) bool {
	return p.streams && pg.kind != kindDataV2 && length > largeBytes && int64(len(p.near())) < length
}

// reserve reserves the memory for a page whose header was read: length bytes that size bytes are uncompressed from. What was reserved for the
// page before it counts.
func (p *pages) reserve(pg *page, length, size int64) error {
	if p.room == nil {
		return nil
	}
	need := int64(0)
	if p.codec != nil || pg.kind == kindDictionary {
		need = size
	}
	if p.window > 0 && length > p.window && !p.streamed(pg, length) {
		need += length // a page within a window takes no more than the window, which the split has reserved
	}
	switch {
	case pg.kind == kindDictionary:
		need += min(int64(pg.n), size) * stretchBytes // fits: n has 31 bits
	case pg.encoding == parquet.Encodings.DeltaLengthByteArray, pg.encoding == parquet.Encodings.DeltaByteArray:
		need += int64(pg.n) * lengthsBytes // fits: n has 31 bits
	}
	if need <= p.held {
		return nil
	}
	if err := p.room(need - p.held); err != nil { // fits: held is less than need
		return fmt.Errorf("it has %d bytes uncompressed: %w", size, err)
	}
	p.held = need
	return nil
}

// whole reads the complete body of a page and then uncompresses it.
func (p *pages) whole(pg *page, h *header, size int) error {
	body, err := p.bytes(h.page.value[pageCompressed])
	if err != nil {
		return err
	}
	if err := p.verify(h, h.checksum(body)); err != nil {
		return err
	}
	switch pg.kind {
	case kindDataV1, kindDictionary:
		pg.data, err = p.uncompress(body, size, true)
	case kindDataV2:
		err = p.readV2(pg, &h.data, body, size)
	}
	if err == nil && p.codec != nil && pg.kind != kindDataV2 {
		p.free(&p.body) // other columns can use it while this page is decoded
	}
	return err
}

// ErrChecksum says that a page's bytes were changed after they were written.
var ErrChecksum = errors.New("the page's checksum does not match: its bytes were changed in the store or on the way")

// checksum is the CRC-32 of a page's body, 0 if its header has none.
func (h *header) checksum(body []byte) uint32 {
	if !h.page.has(pageCRC) {
		return 0
	}
	return crc32.ChecksumIEEE(body)
}

// verify compares a page's CRC-32 with the one in its header. The CRC covers all bytes of the page as stored, including the levels of
// version 2. The data pages of a column chunk must either all have a CRC or none: so a corrupt header can't disable the check.
func (p *pages) verify(h *header, sum uint32) error {
	summed := h.page.has(pageCRC)
	if summed && sum != uint32(h.page.value[pageCRC]) {
		return fmt.Errorf("%w: restore the file", ErrChecksum)
	}
	if h.page.value[pageKind] == kindDictionary { // parquet-java wrote CRCs for dictionary pages, but none for data pages of version 2
		return nil
	}
	if p.checked && summed != p.summed {
		return corrupt("some data pages of the column chunk have a checksum and some have none")
	}
	p.checked, p.summed = true, summed
	return nil
}

// Verify checks the headers and CRCs of a chunk's pages and the number of their values, for readers that don't. Bodies of pages without a CRC
// are not read. It returns the memory for the chunk's largest page, uncompressed, and its dictionary.
func Verify(chunk Chunk, mem memory.Allocator) (room int64, err error) {
	p := pages{from: chunk.File, at: chunk.Offset, end: chunk.Offset + chunk.Length, window: chunk.Window, mem: mem}
	defer p.close()
	var values, data, dictionary int64
	for p.at < p.end {
		at := p.at
		pg, size, err := p.verifyNext()
		if err != nil {
			return 0, fmt.Errorf("page at offset %d: %w", at, err)
		}
		switch {
		case pg.kind == kindDataV1 || pg.kind == kindDataV2:
			if int64(pg.n) > chunk.Values-values { // fits: values is at most chunk.Values
				return 0, corrupt("the pages of the column chunk have more than the %d values that the footer says", chunk.Values)
			}
			values, data = values+int64(pg.n), max(data, size)
		case pg.kind == kindDictionary && chunk.Leaf.PhysicalType() == parquet.Types.ByteArray:
			dictionary = max(dictionary, size+min(int64(pg.n), size)*sliceBytes) // fits: n has 31 bits
		case pg.kind == kindDictionary:
			dictionary = max(dictionary, size)
		}
	}
	if values != chunk.Values {
		return 0, corrupt("the pages of the column chunk have %d values, the footer says %d", values, chunk.Values)
	}
	return data + dictionary, nil
}

// verifyNext checks the page at p.at, which it returns without its content, with its uncompressed size, and advances past it.
func (p *pages) verifyNext() (pg page, size int64, err error) {
	h, err := p.header()
	if err != nil {
		return page{}, 0, err
	}
	if pg, err = h.describe(); err != nil {
		return page{}, 0, err
	}
	size = h.page.value[pageUncompressed]
	length := h.page.value[pageCompressed]
	if !h.page.has(pageCRC) && 0 <= length && length <= p.end-p.at { // fits: at is within the chunk
		p.at += length
		return pg, size, p.verify(&h, 0)
	}
	body, err := p.bytes(length)
	if err != nil {
		return page{}, 0, err
	}
	return pg, size, p.verify(&h, h.checksum(body))
}

// readV2 splits the levels, which are not compressed, off the body.
func (p *pages) readV2(pg *page, d *fields, body []byte, size int) (err error) {
	reps, defs := d.value[v2RepBytes], d.value[v2DefBytes]
	pg.reps, pg.defs = body[:reps], body[reps:reps+defs]
	compressed := !d.has(v2Compressed) || d.value[v2Compressed] != 0
	pg.data, err = p.uncompress(body[reps+defs:], size-int(reps+defs), compressed) // fits: describe has checked that both levels are within the body
	return err
}

// header reads the header at p.at and advances past it.
func (p *pages) header() (header, error) {
	for want := int64(512); ; want *= 8 {
		text, err := p.peek(min(want, p.end-p.at)) // fits: at is within the chunk
		if err != nil {
			return header{}, err
		}
		h, size, err := parseHeader(text)
		switch {
		case err == nil && !h.page.has(pageKind, pageUncompressed, pageCompressed):
			return header{}, errHeader
		case err == nil:
			p.at += int64(size)
			return h, nil
		case !errors.Is(err, errShort) || want >= min(mostHeader, p.end-p.at): // fits: at is within the chunk
			return header{}, errHeader
		}
	}
}

// nearby is a file that may have some of its bytes in memory.
type nearby interface {
	// Near returns the bytes in memory from offset on, at most length, that are contiguous there. They never change.
	Near(offset, length int64) []byte
}

// peek returns at least n bytes from p.at on; the column chunk must have them.
func (p *pages) peek(n int64) ([]byte, error) {
	if near := p.near(); int64(len(near)) >= n {
		return near, nil
	}
	if file, ok := p.from.(nearby); ok {
		if near := file.Near(p.at, p.end-p.at); int64(len(near)) >= n { // fits: at is within the chunk
			p.have, p.start = near, p.at
			return near, nil
		}
	}
	if int64(len(p.buffer)) < n {
		p.free(&p.buffer)
		p.buffer = p.mem.Allocate(int(max(n, min(max(windowBytes, p.window), p.end-p.at)))) // fits: at is within the chunk
	}
	p.have, p.start = p.buffer[:min(int64(len(p.buffer)), p.end-p.at)], p.at // fits: at is within the chunk
	if err := readFull(p.from, p.have, p.at); err != nil {
		p.have = nil
		return nil, err
	}
	return p.have, nil
}

// near is the part of have from p.at on.
func (p *pages) near() []byte {
	if p.at < p.start || p.at >= p.start+int64(len(p.have)) {
		return nil
	}
	return p.have[p.at-p.start:] // fits: start is at most at
}

// bytes reads the next n bytes and advances past them. They are valid until the next page.
func (p *pages) bytes(n int64) ([]byte, error) {
	if n < 0 || n > p.end-p.at { // fits: at is within the chunk
		return nil, corrupt("%d bytes where its column chunk has %d left", n, p.end-p.at) // fits: at is within the chunk
	}
	near := p.near()
	if int64(len(near)) >= n {
		p.at += n
		return near[:n:n], nil
	}
	body := p.sized(&p.body, int(n))
	have := copy(body, near)
	if err := readFull(p.from, body[have:], p.at+int64(have)); err != nil {
		return nil, err
	}
	p.at += n
	return body, nil
}

// uncompress returns the uncompressed body of a page, size bytes.
func (p *pages) uncompress(body []byte, size int, compressed bool) ([]byte, error) {
	if p.codec == nil || !compressed {
		if len(body) != size {
			return nil, corrupt("%d bytes where its header says %d", len(body), size)
		}
		return body, nil
	}
	if size == 0 {
		return nil, nil
	}
	out, err := compress.Decode(p.codec, p.sized(&p.plain, size), body)
	if err != nil {
		return nil, fmt.Errorf("corrupt page: it cannot be uncompressed: %w: restore or rewrite the file", err)
	}
	if len(out) != size {
		return nil, corrupt("%d bytes uncompressed where its header says %d", len(out), size)
	}
	return out, nil
}

// keep makes the bytes of a page valid until freeKept. They start at the beginning of an allocation, so that values in them are
// aligned.
func (p *pages) keep(data []byte) []byte {
	p.heldKept, p.held = p.heldKept+p.held, 0
	if len(data) == 0 {
		return nil
	}
	for _, b := range []*[]byte{&p.plain, &p.body} {
		if len(*b) > 0 && unsafe.SliceData(*b) == unsafe.SliceData(data) {
			p.kept = append(p.kept, *b)
			*b = nil // the next page gets a new buffer
			return data
		}
	}
	kept := p.mem.Allocate(len(data))
	copy(kept, data)
	p.kept = append(p.kept, kept)
	return kept
}

// sized returns n bytes of a buffer, which is reallocated if it is too short; the content is undefined.
func (p *pages) sized(b *[]byte, n int) []byte {
	if n > len(*b) {
		p.free(b)
		*b = p.mem.Allocate(n)
	}
	return (*b)[:n:n]
}

func (p *pages) free(b *[]byte) {
	if *b != nil {
		p.mem.Free(*b)
		*b = nil
	}
}

// close releases all memory.
func (p *pages) close() {
	p.have = nil
	p.free(&p.buffer)
	p.free(&p.body)
	p.free(&p.plain)
	p.giveBack(&p.held)
	p.freeKept()
}

// giveBack returns what was reserved of room.
func (p *pages) giveBack(held *int64) {
	if *held > 0 {
		_ = p.room(-*held) // returning memory never fails
		*held = 0
	}
}

func readFull(from io.ReaderAt, b []byte, at int64) error {
	n, err := from.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %d: %w", len(b), at, err)
}
