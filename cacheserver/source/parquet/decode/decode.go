// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package decode decodes the pages of Parquet column chunks to Arrow arrays, for columns of primitive values and of lists of these.
//
// A [Column] reads its pages once and writes each value once, to the buffer of its array. It processes definition and repetition
// levels run by run, as they are encoded, so that a page without nulls costs hardly more than its values. For structs, maps, lists of
// lists and rare types [Open] returns [errors.ErrUnsupported]; a general reader such as pqarrow, which yields the same arrays, must
// be used for these.
//
// Encodings: PLAIN, dictionary, RLE, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY and BYTE_STREAM_SPLIT, where the
// Parquet format (Encodings.md) allows them; data pages of version 1 and 2; every codec that arrow-go supports, and LZ4 with Hadoop's
// framing. The CRC of a page is checked if it has one.
package decode

import (
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// Chunk is a column chunk to decode. All fields are required, except for Window, Room and Pages.
type Chunk struct {
	// File has the chunk's pages at [Offset, Offset+Length), the dictionary first. If it has a method Near(offset, length int64)
	// []byte, pages that this returns are decoded without copying them.
	File           io.ReaderAt
	Offset, Length int64
	// Window is how many bytes of the file are read at a time; 0: 64 KiB, and of large pages 256 KiB.
	Window int64
	// Codec is the compression of the pages, and PageBytes bounds the uncompressed size of a page.
	Codec     compress.Compression
	PageBytes int64
	// Room, unless it is nil, is called with the memory for a page before it is allocated, and with a negative number when that is free again. An
	// error is returned in place of the page.
	Room func(bytes int64) error
	// Leaf is the Parquet column.
	Leaf *schema.Column
	// Field is the Arrow field of its rows: the top-level field that pqarrow yields for it without a stored Arrow schema.
	Field arrow.Field
	// Rows and Values are the numbers of rows and values in the chunk according to the footer; nulls and empty lists count as values.
	Rows, Values int64
	// Pages, if it is not nil, selects the data pages to read; [Offset, Offset+Length) is then only the dictionary.
	Pages *Pages
}

// Pages are consecutive data pages of a chunk, as described by its offset index.
type Pages struct {
	Offset, Length int64
	Row, Rows      int64 // the index in the chunk of their first row, and the number of rows
}

// Covers reports whether Open supports a Parquet column whose rows become field.
func Covers(leaf *schema.Column, field arrow.Field) bool {
	c := &Column{chunk: Chunk{Leaf: leaf, Field: field}}
	value, err := c.nest()
	if err == nil {
		_, err = kindOf(leaf, value.Type)
	}
	return err == nil
}

// Column decodes a column chunk from its first row to its last. It is not safe for concurrent use. Open makes Columns; the caller
// closes them. After an error only Close may be called.
type Column struct {
	chunk  Chunk
	pages  pages
	mem    memory.Allocator
	values values
	kind   kind

	list   bool
	maxDef uint8
	holder uint8 // definition level of an empty list

	rows   validity // if list
	slots  validity // of values
	starts output   // list offsets, if list

	rowsRead       int64 // including those before chunk.Pages
	endRow         int64 // end of chunk, or of chunk.Pages
	valuesRead     int64 // including those of the current page
	left           int   // remaining values of the current page
	def            hybrid
	defs           levels // used instead of def, if list
	reps           hybrid
	dictionaryRead bool // a dictionary page was read
}

// values decodes one physical type, page by page, to slots of an output.
type values interface {
	// begin begins an output of about hint slots.
	begin(mem memory.Allocator, hint int)
	// dictionary sets the dictionary, from a page of n values. data is aligned like memory of an Allocator, and valid until
	// dictionary is called again.
	dictionary(data []byte, n int) error
	// page sets the values of the current data page, at most n.
	page(encoding parquet.Encoding, data []byte, n int) error
	// read appends the next n values of the page.
	read(n int) error
	// spread moves the last n appended values to the slots whose bits, starting at bit at, are set.
	spread(bits []byte, at, slots, n int)
	// finish returns the buffers of the output, without the validity bitmap, and resets it.
	finish() []*memory.Buffer
	// release releases an unfinished output.
	release()
}

// Open starts decoding a chunk and reads its first page. Arrays are allocated in mem, which need not zero its memory. The error is
// errors.ErrUnsupported if this package does not support the column.
func Open(chunk Chunk, mem memory.Allocator) (*Column, error) {
	c := &Column{chunk: chunk, mem: mem, endRow: chunk.Rows}
	value, err := c.nest()
	if err != nil {
		return nil, err
	}
	if c.kind, err = kindOf(chunk.Leaf, value.Type); err != nil {
		return nil, err
	}
	c.values = c.kind.values(c.kind.width)
	c.pages = pages{from: chunk.File, at: chunk.Offset, end: chunk.Offset + chunk.Length, then: chunk.Pages, most: chunk.PageBytes, window: chunk.Window, room: chunk.Room, mem: mem}
	if chunk.Pages != nil {
		c.rowsRead, c.endRow = chunk.Pages.Row, chunk.Pages.Row+chunk.Pages.Rows
	}
	if chunk.Codec != compress.Codecs.Uncompressed {
		if c.pages.codec, err = compress.GetCodec(chunk.Codec); err != nil {
			return nil, fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
		}
		c.pages.streams = chunk.Codec == compress.Codecs.Zstd || chunk.Codec == compress.Codecs.Gzip
	}
	if _, err := c.next(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// nest checks the levels of the column against its field, and returns the field of its values.
func (c *Column) nest() (value arrow.Field, err error) {
	value = c.chunk.Field
	defs, reps := int16(0), int16(0)
	if list, ok := value.Type.(*arrow.ListType); ok {
		if value.Nullable {
			c.holder = 1
		}
		c.list, value = true, list.ElemField()
		defs, reps = int16(c.holder)+1, 1
	}
	if value.Nullable {
		defs++
	}
	if c.chunk.Leaf.MaxDefinitionLevel() != defs || c.chunk.Leaf.MaxRepetitionLevel() != reps {
		return value, fmt.Errorf("%s with levels %d and %d: %w", c.chunk.Field.Type, c.chunk.Leaf.MaxDefinitionLevel(), c.chunk.Leaf.MaxRepetitionLevel(), errors.ErrUnsupported)
	}
	c.maxDef = uint8(defs)
	return value, nil
}

// Longest is the length in bytes of the longest string in the chunk's dictionary, 0 if it has none. It bounds what a few indices can
// expand to.
func (c *Column) Longest() int {
	t, ok := c.values.(*text)
	if !ok {
		return 0
	}
	return t.longest
}

// Close releases what the column holds; arrays returned by Read stay valid.
func (c *Column) Close() {
	c.pages.close()
}

// Read decodes the next n rows; it returns an error if the chunk does not have them. The caller releases the array. After the chunk's
// last row, left over values are an error too.
func (c *Column) Read(n int) (_ arrow.Array, err error) {
	c.begin(n)
	defer func() {
		if err != nil {
			c.abandon()
		}
	}()
	if c.list {
		err = c.readLists(n)
	} else {
		err = c.readFlat(n)
	}
	if c.rowsRead += int64(n); err == nil && c.rowsRead == c.endRow {
		err = c.over()
	}
	if err != nil {
		return nil, err
	}
	return c.finish(n), nil
}

// SkipRest skips the rows up to the end of the chunk, or of its Pages.
func (c *Column) SkipRest() error { return c.Skip(c.endRow - c.rowsRead) }

// skipRows is the number of rows that Skip decodes at a time.
const skipRows = 16 << 10

// Skip skips the next n rows. Pages of a non-list column that are skipped completely are not decoded.
func (c *Column) Skip(n int64) error {
	for n > 0 {
		if !c.list && c.left == 0 {
			if err := c.need(); err != nil {
				return err
			}
		}
		if k := int64(c.left); !c.list && k <= n {
			c.left, c.rowsRead, n = 0, c.rowsRead+k, n-k
			if c.rowsRead == c.endRow {
				return c.over()
			}
			continue
		}
		k := min(n, skipRows)
		rows, err := c.Read(int(k))
		if err != nil {
			return err
		}
		rows.Release()
		n -= k
	}
	return nil
}

// mostHint bounds the memory that is allocated before values are read: slots, and bytes of values of fixed width. A footer may state any number
// of values of lists, and any width.
const mostHint = 1 << 20

// begin starts an output of n rows.
func (c *Column) begin(n int) {
	slots := n
	if c.list {
		mean := float64(c.chunk.Values) / float64(max(c.chunk.Rows, 1))
		slots = int(min(mean*float64(n), mostHint)) + n/16 + 64
		c.rows.begin(c.mem, n)
		c.starts = output{mem: c.mem}
		c.starts.reserve(4 * (n + 1))
		extend[int32](&c.starts, 1)[0] = 0
	}
	c.slots.begin(c.mem, slots)
	c.values.begin(c.mem, slots)
}

// abandon releases an unfinished output.
func (c *Column) abandon() {
	c.rows.bits.release()
	c.slots.bits.release()
	c.starts.release()
	c.values.release()
}

// readFlat reads n values of a non-list column, which are n rows.
func (c *Column) readFlat(n int) error {
	for n > 0 {
		if c.left == 0 {
			if err := c.need(); err != nil {
				return err
			}
		}
		k := min(n, c.left)
		at := c.slots.slots
		valid, err := c.take(k)
		if err != nil {
			return err
		}
		if err := c.append(at, k, valid); err != nil {
			return err
		}
		c.left -= k
		n -= k
	}
	return nil
}

// take appends n slots according to the page's definition levels and returns how many are valid.
func (c *Column) take(n int) (valid int, err error) {
	if c.maxDef > 0 {
		return c.slots.take(&c.def, n)
	}
	c.slots.add(true, n)
	return n, nil
}

// append appends slots, starting at bit at of the validity bitmap, and fills the valid ones with the next values.
func (c *Column) append(at, slots, valid int) error {
	if err := c.values.read(valid); err != nil {
		return c.locate(err, at, slots)
	}
	if valid < slots {
		c.values.spread(c.slots.bits.bytes(), at, slots, valid)
	}
	return nil
}

// locate adds the row to an error about one of the values that are appended in slots starting at bit at.
func (c *Column) locate(err error, at, slots int) error {
	var bad *TextError
	if !errors.As(err, &bad) || c.list {
		return err
	}
	slot, seen := at, -1
	for ; slot < at+slots; slot++ {
		if c.slots.nulls == 0 || bitutil.BitIsSet(c.slots.bits.bytes(), slot) {
			seen++
		}
		if seen == bad.Index {
			break
		}
	}
	return fmt.Errorf("row %d: %w", c.rowsRead+int64(slot), err)
}

// need advances to the next page with values.
func (c *Column) need() error {
	for c.left == 0 {
		ok, err := c.next()
		if err != nil {
			return err
		}
		if !ok {
			return errEnds
		}
	}
	return nil
}

// finish returns the array of n rows.
func (c *Column) finish(n int) arrow.Array {
	buffers := c.kind.finish(c.mem, c.values.finish(), c.slots.slots)
	slots := arrayOf(c.kind.to, c.slots.slots, append([]*memory.Buffer{c.slots.finish()}, buffers...), nil, c.slots.nulls)
	if !c.list {
		return slots
	}
	defer slots.Release()
	return arrayOf(c.chunk.Field.Type, n, []*memory.Buffer{c.rows.finish(), c.starts.finish()}, []arrow.ArrayData{slots.Data()}, c.rows.nulls)
}

// arrayOf makes an array that takes over the buffers.
func arrayOf(to arrow.DataType, n int, buffers []*memory.Buffer, kids []arrow.ArrayData, nulls int) arrow.Array {
	d := array.NewData(to, n, buffers, kids, nulls, 0)
	defer d.Release()
	for _, b := range buffers {
		if b != nil {
			b.Release()
		}
	}
	return array.MakeFromData(d)
}

// corrupt returns an error about a corrupt page.
func corrupt(format string, args ...any) error {
	return fmt.Errorf("corrupt page: "+format+": restore or rewrite the file", args...)
}

// errFew says that a page has fewer values than its header states.
var errFew = corrupt("fewer values than its header says")

func unknown(encoding parquet.Encoding) error {
	return fmt.Errorf("encoding %s: %w", encoding, errors.ErrUnsupported)
}
