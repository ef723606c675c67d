// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package decode reads the pages of Parquet column chunks, of plain columns and of lists of plain values, into Arrow arrays.
//
// A [Column] goes over its pages once and writes each value once, to the buffer of the array that it belongs to.
// Definition and repetition levels are followed as the runs that they are encoded in, so that a page without nulls
// costs nothing beside its values. What this package does not cover, structs, maps, lists of lists and rare types,
// is for a general reader such as pqarrow, which gives the same arrays: [Open] tells with [errors.ErrUnsupported].
//
// Encodings: PLAIN, dictionary, RLE, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY and
// BYTE_STREAM_SPLIT, where the Parquet format (Encodings.md) allows them; data pages of version 1 and 2; every codec
// that arrow-go knows, and LZ4 as Hadoop frames it. A page that has a CRC is compared with it.
package decode

import (
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// Chunk is a column chunk to decode. All fields are needed.
type Chunk struct {
	// File has the chunk's pages at [Offset, Offset+Length), the dictionary first. If it has a method
	// Near(offset, length int64) []byte, pages are decoded where that says that they lie in memory.
	File           io.ReaderAt
	Offset, Length int64
	// Codec is what they are compressed with, and PageBytes bounds what one of them is uncompressed.
	Codec     compress.Compression
	PageBytes int64
	// Leaf is the Parquet column.
	Leaf *schema.Column
	// Field is what its rows become: the top-level field that pqarrow makes of it without a stored Arrow schema.
	Field arrow.Field
	// Rows and Values are how many the chunk has by the footer; nulls and empty lists count as values.
	Rows, Values int64
	// Pages, if it is not nil, are the data pages to read; [Offset, Offset+Length) has the dictionary alone then.
	Pages *Pages
}

// Pages are consecutive data pages of a chunk, as its offset index tells them.
type Pages struct {
	Offset, Length int64
	Row, Rows      int64 // their first row in the chunk, and how many they have
}

// Covers reports whether Open covers a Parquet column whose rows become field.
func Covers(leaf *schema.Column, field arrow.Field) bool {
	c := &Column{chunk: Chunk{Leaf: leaf, Field: field}}
	value, err := c.nest()
	if err == nil {
		_, err = kindOf(leaf, value.Type)
	}
	return err == nil
}

// Column decodes a column chunk from its first row to its last. It is for one goroutine; Open makes Columns, and
// whoever opened one closes it. After an error it is of no more use but to be closed.
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
	starts output   // offsets, if list

	rowsRead   int64 // those before chunk.Pages included
	endRow     int64 // where chunk, or chunk.Pages, end
	valuesRead int64 // those of the page under way included
	left       int   // values of that page
	def        hybrid
	defs       levels // in place of def, if list
	reps       hybrid
	worded     bool // there was a dictionary page
}

// values decodes one physical type, page by page, to slots of an output.
type values interface {
	// begin begins an output of about hint slots.
	begin(mem memory.Allocator, hint int)
	// dictionary sets the dictionary to a page of n values. data is aligned as memory of an Allocator is and is valid
	// until dictionary is called again.
	dictionary(data []byte, n int) error
	// page takes the values of a data page, at most n.
	page(encoding parquet.Encoding, data []byte, n int) error
	// read appends the next n values of the page.
	read(n int) error
	// spread makes the last n values that were appended fill slots: those whose bits, from bit at on, are set.
	spread(bits []byte, at, slots, n int)
	// finish hands over the buffers of the output, all but the validity.
	finish() []*memory.Buffer
	// release ends an output that is not finished.
	release()
}

// Open begins to decode a chunk in memory of mem, whose bytes need not be zero; it reads the first page. The error is
// errors.ErrUnsupported if the column is one that this package does not cover.
func Open(chunk Chunk, mem memory.Allocator) (*Column, error) {
	c := &Column{chunk: chunk, mem: mem, endRow: chunk.Rows}
	value, err := c.nest()
	if err != nil {
		return nil, err
	}
	if c.kind, err = kindOf(chunk.Leaf, value.Type); err != nil {
		return nil, err
	}
	c.values = c.kind.values()
	c.pages = pages{from: chunk.File, at: chunk.Offset, end: chunk.Offset + chunk.Length, then: chunk.Pages, most: chunk.PageBytes, mem: mem}
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

// Longest is the length in bytes of the longest string in the chunk's dictionary, 0 if it has none: a few indices
// may stand for any number of bytes.
func (c *Column) Longest() int {
	t, ok := c.values.(*text)
	if !ok {
		return 0
	}
	return t.longest
}

// Close releases what the column holds; arrays that Read gave stay good.
func (c *Column) Close() {
	c.pages.close()
}

// Read decodes the next n rows, or says why the chunk does not have them. The caller releases the array. With the
// chunk's last row it is also an error if values are left over.
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

// SkipRest passes the rows to the end of the chunk, or of its Pages.
func (c *Column) SkipRest() error { return c.Skip(c.endRow - c.rowsRead) }

// skipRows is how many rows Skip decodes at a time.
const skipRows = 16 << 10

// Skip passes the next n rows. Pages of a column of plain values that have no others are not decoded.
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

// begin begins an output of n rows.
func (c *Column) begin(n int) {
	slots := n
	if c.list {
		mean := float64(c.chunk.Values) / float64(max(c.chunk.Rows, 1))
		slots = int(mean*float64(n)) + n/16 + 64
		c.rows.begin(c.mem, n)
		c.starts = output{mem: c.mem}
		c.starts.reserve(4 * (n + 1))
		extend[int32](&c.starts, 1)[0] = 0
	}
	c.slots.begin(c.mem, slots)
	c.values.begin(c.mem, slots)
}

// abandon releases an output that is not finished.
func (c *Column) abandon() {
	c.rows.bits.release()
	c.slots.bits.release()
	c.starts.release()
	c.values.release()
}

// readFlat reads n values, one a row.
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

// take appends n slots by the page's definition levels and returns how many are valid.
func (c *Column) take(n int) (valid int, err error) {
	if c.maxDef > 0 {
		return c.slots.take(&c.def, n)
	}
	c.slots.add(true, n)
	return n, nil
}

// append appends slots from number at on, of which the next values fill those that are valid.
func (c *Column) append(at, slots, valid int) error {
	if err := c.values.read(valid); err != nil {
		return err
	}
	if valid < slots {
		c.values.spread(c.slots.bits.bytes(), at, slots, valid)
	}
	return nil
}

// need goes on to the next page with values.
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

// finish makes the array of n rows.
func (c *Column) finish(n int) arrow.Array {
	buffers := c.kind.finish(c.mem, c.values.finish(), c.slots.slots)
	slots := arrayOf(c.kind.to, c.slots.slots, append([]*memory.Buffer{c.slots.finish()}, buffers...), nil, c.slots.nulls)
	if !c.list {
		return slots
	}
	defer slots.Release()
	return arrayOf(c.chunk.Field.Type, n, []*memory.Buffer{c.rows.finish(), c.starts.finish()}, []arrow.ArrayData{slots.Data()}, c.rows.nulls)
}

// arrayOf makes an array, which takes over the buffers.
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

// corrupt says what is wrong with a page.
func corrupt(format string, args ...any) error {
	return fmt.Errorf("corrupt page: "+format+": restore or rewrite the file", args...)
}

// errFew is that a page has less than it says.
var errFew = corrupt("fewer values than its header says")

func unknown(encoding parquet.Encoding) error {
	return fmt.Errorf("encoding %s: %w", encoding, errors.ErrUnsupported)
}
