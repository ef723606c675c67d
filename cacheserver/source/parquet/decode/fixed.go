// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
)

// number is the bits of a physical type of 4 or 8 bytes.
type number interface{ uint32 | uint64 }

// fixed decodes INT32, INT64, FLOAT and DOUBLE.
type fixed[T number] struct {
	out   output
	entry []T // the dictionary's values

	encoding parquet.Encoding
	data     []byte // plain values or, with BYTE_STREAM_SPLIT, streams of
	stream   int    // bytes each
	at       int    // values read from the streams
	ids      hybrid
	deltas   *delta
}

func (f *fixed[T]) begin(mem memory.Allocator, hint int) {
	f.out = output{mem: mem}
	f.out.reserve(hint * sizeOf[T]())
}

func (f *fixed[T]) dictionary(data []byte, n int) error {
	if len(data)/sizeOf[T]() < n {
		return corrupt("dictionary of %d values in %d bytes", n, len(data))
	}
	f.entry = valuesOf[T](data)[:n]
	return nil
}

func (f *fixed[T]) page(encoding parquet.Encoding, data []byte, n int) (err error) {
	f.encoding, f.data = encoding, data
	switch encoding {
	case parquet.Encodings.Plain:
	case parquet.Encodings.RLEDict:
		f.ids, err = indices(data)
	case parquet.Encodings.DeltaBinaryPacked:
		f.deltas, err = newDelta(data, n)
	case parquet.Encodings.ByteStreamSplit:
		f.stream, f.at = len(data)/sizeOf[T](), 0
	default:
		err = unknown(encoding)
	}
	return err
}

func (f *fixed[T]) read(n int) error {
	size := sizeOf[T]()
	switch f.encoding {
	case parquet.Encodings.Plain:
		if n > len(f.data)/size {
			return errFew
		}
		copy(bytesOf(extend[T](&f.out, n)), f.data)
		f.data = f.data[n*size:]
		return nil
	case parquet.Encodings.RLEDict:
		return gather(&f.ids, extend[T](&f.out, n), f.entry)
	case parquet.Encodings.DeltaBinaryPacked:
		return readDelta(f.deltas, extend[T](&f.out, n))
	}
	if n > f.stream-f.at {
		return errFew
	}
	join(extend[T](&f.out, n), f.data[f.at:], f.stream)
	f.at += n
	return nil
}

// join assembles values from streams of their first bytes, their second bytes, and so on.
func join[T number](dst []T, data []byte, stream int) {
	clear(dst)
	for k := range sizeOf[T]() {
		for i, b := range data[k*stream:][:len(dst)] {
			dst[i] |= T(b) << (8 * k)
		}
	}
}

func (f *fixed[T]) spread(bits []byte, at, slots, n int) {
	extend[T](&f.out, slots-n)
	all := valuesOf[T](f.out.bytes())
	spread(all[len(all)-slots:], bits, at, n)
}

// spread moves the first n values of out to the slots whose bits, starting at bit at, are set; there are n of these. The other slots
// become zero.
func spread[T any](out []T, bits []byte, at, n int) {
	var zero T
	for i := len(out) - 1; i >= n; i-- {
		if bitutil.BitIsSet(bits, at+i) {
			n--
			out[i] = out[n]
		} else {
			out[i] = zero
		}
	}
}

func (f *fixed[T]) finish() []*memory.Buffer {
	return []*memory.Buffer{f.out.finish()}
}

func (f *fixed[T]) release() { f.out.release() }

func sizeOf[T number]() int {
	var v T
	if _, ok := any(v).(uint32); ok {
		return 4
	}
	return 8
}

// indices decodes a page's indices into the dictionary.
func indices(data []byte) (hybrid, error) {
	switch {
	case len(data) == 0: // every value is null
		return hybrid{width: 1}, nil
	case data[0] > 32:
		return hybrid{}, corrupt("indices of %d bits", data[0])
	}
	return newHybrid(data[1:], uint(data[0])), nil
}
