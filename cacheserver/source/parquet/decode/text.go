// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
)

// text decodes BYTE_ARRAY to 32-bit offsets and data.
type text struct {
	utf8 bool // values must be valid UTF-8

	ends  output // offsets
	data  output // decoded values
	at    int    // length of data
	sized int    // length of the previous output's values

	entry    []stretch // the dictionary's values,
	dictData []byte
	longest  int

	encoding parquet.Encoding
	rest     []byte   // plain values, or the values after their lengths
	lengths  []uint32 // the lengths of all values
	front    frontCoded
	ids      hybrid
	block    [256]stretch
}

// stretch is the position and length of a value of the dictionary in dictData.
type stretch struct{ at, n uint32 }

func (t *text) begin(mem memory.Allocator, hint int) {
	t.ends, t.data = output{mem: mem}, output{mem: mem}
	t.ends.reserve(4 * (hint + 1))
	t.data.reserve(t.sized + t.sized/16 + short)
	t.at = 0
	extend[int32](&t.ends, 1)[0] = 0
}

func (t *text) dictionary(data []byte, n int) error {
	if n > len(data)/4 {
		return corrupt("dictionary of %d values in %d bytes", n, len(data))
	}
	t.entry, t.dictData = make([]stretch, n), data
	at := 0
	for i := range t.entry {
		if len(data)-at < 4 {
			return errFew
		}
		size := binary.LittleEndian.Uint32(data[at:])
		if at += 4; int64(size) > int64(len(data)-at) {
			return corrupt("value of %d bytes where %d are left", size, len(data)-at)
		}
		t.entry[i] = stretch{at: uint32(at), n: size}
		t.longest = max(t.longest, int(size))
		at += int(size)
		if value := data[at-int(size) : at]; t.utf8 && !valid(value) {
			return fmt.Errorf("dictionary: %w", &TextError{Index: i, value: value})
		}
	}
	return nil
}

func (t *text) page(encoding parquet.Encoding, data []byte, n int) (err error) {
	t.encoding, t.rest = encoding, data
	switch encoding {
	case parquet.Encodings.Plain:
	case parquet.Encodings.RLEDict:
		t.ids, err = indices(data)
	case parquet.Encodings.DeltaLengthByteArray:
		t.lengths, t.rest, err = lengths(data, n)
	case parquet.Encodings.DeltaByteArray:
		err = t.front.begin(data, n)
	default:
		err = unknown(encoding)
	}
	return err
}

func (t *text) read(n int) (err error) {
	start, ends := t.at, extend[int32](&t.ends, n)
	switch t.encoding {
	case parquet.Encodings.RLEDict:
		return t.look(ends) // the dictionary's values were checked
	case parquet.Encodings.Plain:
		err = t.plain(ends)
	case parquet.Encodings.DeltaLengthByteArray:
		err = t.deltaLengthByteArray(ends)
	default:
		err = t.deltaByteArray(ends)
	}
	if err != nil || !t.utf8 {
		return err
	}
	return CheckText(t.data.buf.Buf(), int32(start), ends)
}

// short is the maximum length of a value that is copied as exactly that many bytes: a few moves instead of a call.
const short = 32

// ErrFull is the error for rows whose strings take more than 2 GiB, the limit of 32-bit offsets: read fewer rows at a time.
var ErrFull = errors.New("the values of the rows that are read together take more than 2 GiB")

// room returns the memory of the data with room for a value of n bytes, and for the bytes that a short copy writes past it. It is never
// longer than 32-bit offsets allow.
func (t *text) room(n int) ([]byte, error) {
	if t.at+n > math.MaxInt32 {
		return nil, ErrFull
	}
	if need := t.at + n + short; need > t.data.buf.Cap() {
		t.data.reserve(max(need, t.at+t.at/2))
	}
	out := t.data.buf.Buf()
	return out[:min(len(out), math.MaxInt32+short)], nil
}

// plain decodes values that are each preceded by their length.
func (t *text) plain(ends []int32) error {
	out, err := t.room(0)
	for i := range ends {
		if len(t.rest) < 4 {
			return errFew
		}
		from := t.rest[4:]
		n := int(binary.LittleEndian.Uint32(t.rest))
		if n > len(from) {
			return corrupt("value of %d bytes where %d are left", n, len(from))
		}
		if t.at+n+short > len(out) {
			if out, err = t.room(n); err != nil {
				return err
			}
		}
		if n <= short && len(from) >= short {
			*(*[short]byte)(out[t.at:]) = *(*[short]byte)(from)
		} else {
			copy(out[t.at:], from[:n])
		}
		t.at += n
		ends[i] = int32(t.at)
		t.rest = from[n:]
	}
	return err
}

// look decodes indices and copies the dictionary's values.
func (t *text) look(ends []int32) error {
	out, err := t.room(0)
	for len(ends) > 0 && err == nil {
		block := t.block[:min(len(ends), len(t.block))]
		if err := gather(&t.ids, block, t.entry); err != nil {
			return err
		}
		for i, e := range block {
			n := int(e.n)
			if t.at+n+short > len(out) {
				if out, err = t.room(n); err != nil {
					return err
				}
			}
			from := t.dictData[e.at:]
			if n <= short && len(from) >= short {
				*(*[short]byte)(out[t.at:]) = *(*[short]byte)(from)
			} else {
				copy(out[t.at:], from[:n])
			}
			t.at += n
			ends[i] = int32(t.at)
		}
		ends = ends[len(block):]
	}
	return err
}

// deltaLengthByteArray decodes values that are stored consecutively, after the lengths of all.
func (t *text) deltaLengthByteArray(ends []int32) error {
	if len(ends) > len(t.lengths) {
		return errFew
	}
	size := 0
	for i, n := range t.lengths[:len(ends)] {
		size += int(n)
		if size > len(t.rest) {
			return errFew
		}
		ends[i] = int32(t.at + size)
	}
	out, err := t.room(size)
	if err != nil {
		return err
	}
	copy(out[t.at:], t.rest[:size])
	t.at += size
	t.lengths, t.rest = t.lengths[len(ends):], t.rest[size:]
	return nil
}

// deltaByteArray decodes values that share a prefix with the previous value.
func (t *text) deltaByteArray(ends []int32) error {
	for i := range ends {
		v, err := t.front.next()
		if err != nil {
			return err
		}
		out, err := t.room(len(v))
		if err != nil {
			return err
		}
		t.at += copy(out[t.at:], v)
		ends[i] = int32(t.at)
	}
	return nil
}

func (t *text) spread(bits []byte, at, slots, n int) {
	extend[int32](&t.ends, slots-n)
	all := valuesOf[int32](t.ends.bytes())
	ends := all[len(all)-slots-1:] // including that of the previous slot
	for i := slots; i > n; i-- {
		ends[i] = ends[n]
		if bitutil.BitIsSet(bits, at+i-1) {
			n--
		}
	}
}

func (t *text) finish() []*memory.Buffer {
	t.data.resize(t.at)
	t.sized = t.at
	return []*memory.Buffer{t.ends.finish(), t.data.finish()}
}

func (t *text) release() {
	t.ends.release()
	t.data.release()
}
