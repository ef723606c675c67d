// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"math"
)

// hybrid decodes Parquet's RLE/bit-packing hybrid: runs of one value and of packed values (Parquet format, Encodings.md, RLE).
type hybrid struct {
	data  []byte
	width uint // bits per value, at most 32

	left   int    // remaining values of the current run
	value  uint32 // the run's value, if packed is nil
	packed []byte // the run's packed values,
	at     int    // from this bit on
}

// newHybrid returns a decoder of data. With width 0 it yields any number of zeros.
func newHybrid(data []byte, width uint) hybrid {
	h := hybrid{data: data, width: width}
	if width == 0 {
		h.left = math.MaxInt
	}
	return h
}

// run starts the next run if the current one is finished.
func (h *hybrid) run() error {
	for h.left == 0 {
		if len(h.data) == 0 {
			return corrupt("the page has fewer values than its header says")
		}
		head, n := binary.Uvarint(h.data)
		if n <= 0 || head > math.MaxUint32 {
			return corrupt("header of a run")
		}
		h.data = h.data[n:]
		if head&1 == 1 {
			h.pack(int(head >> 1))
			continue
		}
		if err := h.repeat(int(head >> 1)); err != nil {
			return err
		}
	}
	return nil
}

// pack starts a run of groups of 8 packed values. Writers may omit the padding of the last group.
func (h *hybrid) pack(groups int) {
	size := min(groups*int(h.width), len(h.data))
	h.left = min(groups*8, size*8/int(h.width))
	h.packed, h.at = h.data, 0 // including the bytes after the run, so that loads may read past its end
	h.data = h.data[size:]
}

func (h *hybrid) repeat(n int) error {
	size := int(h.width+7) / 8
	if size > len(h.data) {
		return corrupt("value of a run")
	}
	value := uint32(0)
	for i := size - 1; i >= 0; i-- {
		value = value<<8 | uint32(h.data[i])
	}
	h.data = h.data[size:]
	h.left, h.value, h.packed = n, value, nil
	return nil
}

// skip skips n values of the current run.
func (h *hybrid) skip(n int) {
	h.left -= n
	h.at += n * int(h.width)
}

// read sets dst to the next values.
func (h *hybrid) read(dst []uint32) error {
	for len(dst) > 0 {
		if err := h.run(); err != nil {
			return err
		}
		n := min(h.left, len(dst))
		if h.packed != nil {
			unpack(dst[:n], h.packed, h.at, h.width)
		} else {
			fill(dst[:n], h.value)
		}
		h.skip(n)
		dst = dst[n:]
	}
	return nil
}

// gather sets dst to the entries of dict whose indices are the next values.
func gather[T any](h *hybrid, dst, dict []T) error {
	for len(dst) > 0 {
		if err := h.run(); err != nil {
			return err
		}
		n := min(h.left, len(dst))
		switch {
		case h.packed != nil:
			if !lookup(dst[:n], dict, h.packed, h.at, h.width) {
				return errNoEntry
			}
		case int64(h.value) >= int64(len(dict)):
			return errNoEntry
		default:
			fill(dst[:n], dict[h.value])
		}
		h.skip(n)
		dst = dst[n:]
	}
	return nil
}

var errNoEntry = corrupt("index past the end of the dictionary")

func fill[T any](dst []T, v T) {
	for i := range dst {
		dst[i] = v
	}
}
