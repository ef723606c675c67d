// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
)

// wide decodes FIXED_LEN_BYTE_ARRAY.
type wide struct {
	out      output
	width    int
	dictData []byte // the dictionary's values, consecutively
	entry    int    // how many

	encoding parquet.Encoding
	data     []byte // plain values or, with BYTE_STREAM_SPLIT, streams of
	stream   int    // bytes each
	at       int    // values read from the streams
	front    frontCoded
	ids      hybrid
	block    [256]uint32
}

func (w *wide) begin(mem memory.Allocator, hint int) {
	w.out = output{mem: mem}
	w.out.reserve(min(hint, mostHint/w.width+1) * w.width)
}

func (w *wide) dictionary(data []byte, n int) error {
	if len(data)/w.width < n {
		return corrupt("dictionary of %d values in %d bytes", n, len(data))
	}
	w.dictData, w.entry = data, n
	return nil
}

func (w *wide) page(encoding parquet.Encoding, data []byte, n int) (err error) {
	w.encoding, w.data = encoding, data
	switch encoding {
	case parquet.Encodings.Plain:
	case parquet.Encodings.RLEDict:
		w.ids, err = indices(data)
	case parquet.Encodings.ByteStreamSplit:
		w.stream, w.at = len(data)/w.width, 0
	case parquet.Encodings.DeltaByteArray:
		err = w.front.begin(data, n)
	default:
		err = unknown(encoding)
	}
	return err
}

func (w *wide) read(n int) error {
	switch w.encoding {
	case parquet.Encodings.Plain:
		if n > len(w.data)/w.width {
			return errFew
		}
		copy(w.extend(n), w.data)
		w.data = w.data[n*w.width:]
		return nil
	case parquet.Encodings.RLEDict:
		return w.look(w.extend(n))
	case parquet.Encodings.DeltaByteArray:
		return w.deltaByteArray(w.extend(n))
	}
	if n > w.stream-w.at {
		return errFew
	}
	dst := w.extend(n)
	for k := range w.width {
		for i, b := range w.data[k*w.stream+w.at:][:n] {
			dst[i*w.width+k] = b
		}
	}
	w.at += n
	return nil
}

// extend appends n values with arbitrary content.
func (w *wide) extend(n int) []byte { return extend[byte](&w.out, n*w.width) }

func (w *wide) look(dst []byte) error {
	for len(dst) > 0 {
		ids := w.block[:min(len(dst)/w.width, len(w.block))]
		if err := w.ids.read(ids); err != nil {
			return err
		}
		for _, id := range ids {
			if int64(id) >= int64(w.entry) {
				return errNoEntry
			}
			copy(dst[:w.width], w.dictData[int(id)*w.width:])
			dst = dst[w.width:]
		}
	}
	return nil
}

func (w *wide) deltaByteArray(dst []byte) error {
	for ; len(dst) > 0; dst = dst[w.width:] {
		v, err := w.front.next()
		if err != nil {
			return err
		}
		if len(v) != w.width {
			return corrupt("value of %d bytes where all have %d", len(v), w.width)
		}
		copy(dst, v)
	}
	return nil
}

func (w *wide) spread(bits []byte, at, slots, n int) {
	w.extend(slots - n)
	all := w.out.bytes()
	out := all[len(all)-slots*w.width:]
	for i := slots - 1; i >= n; i-- {
		slot := out[i*w.width:][:w.width]
		if bitutil.BitIsSet(bits, at+i) {
			n--
			copy(slot, out[n*w.width:])
		} else {
			clear(slot)
		}
	}
}

func (w *wide) finish() []*memory.Buffer {
	return []*memory.Buffer{w.out.finish()}
}

func (w *wide) release() { w.out.release() }
