// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"

	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
)

// boolean decodes BOOLEAN to a bitmap.
type boolean struct {
	bits output
	n    int

	encoding parquet.Encoding
	plain    []byte
	at       int // next bit of plain
	runs     hybrid
}

func (b *boolean) begin(mem memory.Allocator, hint int) {
	b.bits, b.n = output{mem: mem}, 0
	b.bits.reserve(int(bitutil.BytesForBits(int64(hint))))
}

func (b *boolean) dictionary([]byte, int) error {
	return corrupt("dictionary of booleans")
}

func (b *boolean) page(encoding parquet.Encoding, data []byte, _ int) error {
	b.encoding = encoding
	switch encoding {
	case parquet.Encodings.Plain:
		b.plain, b.at = data, 0
		return nil
	case parquet.Encodings.RLE:
		if len(data) < 4 { // every value is null
			b.runs = hybrid{width: 1}
			return nil
		}
		size := binary.LittleEndian.Uint32(data)
		if uint64(size) > uint64(len(data)-4) {
			return corrupt("booleans of %d bytes where %d are left", size, len(data)-4)
		}
		b.runs = newHybrid(data[4:4+size], 1)
		return nil
	}
	return unknown(encoding)
}

func (b *boolean) grow(n int) []byte {
	b.bits.resize(int(bitutil.BytesForBits(int64(b.n + n))))
	return b.bits.bytes()
}

func (b *boolean) read(n int) error {
	if b.encoding == parquet.Encodings.Plain {
		if n > len(b.plain)*8-b.at {
			return errFew
		}
		bitutil.CopyBitmap(b.plain, b.at, n, b.grow(n), b.n)
		b.at += n
		b.n += n
		return nil
	}
	for n > 0 {
		if err := b.runs.run(); err != nil {
			return err
		}
		k := min(b.runs.left, n)
		switch {
		case b.runs.packed != nil:
			bitutil.CopyBitmap(b.runs.packed, b.runs.at, k, b.grow(k), b.n)
		case b.runs.value > 1:
			return corrupt("boolean %d", b.runs.value)
		default:
			bitutil.SetBitsTo(b.grow(k), int64(b.n), int64(k), b.runs.value == 1)
		}
		b.runs.skip(k)
		b.n += k
		n -= k
	}
	return nil
}

func (b *boolean) spread(bits []byte, at, slots, n int) {
	all, from := b.grow(slots-n), b.n-n
	b.n += slots - n
	for i := slots - 1; i >= n; i-- {
		valid := bitutil.BitIsSet(bits, at+i)
		if valid {
			n--
		}
		bitutil.SetBitTo(all, from+i, valid && bitutil.BitIsSet(all, from+n))
	}
}

func (b *boolean) finish() []*memory.Buffer {
	return []*memory.Buffer{b.bits.finish()}
}

func (b *boolean) release() { b.bits.release() }
