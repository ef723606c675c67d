// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"math"
)

// delta decodes DELTA_BINARY_PACKED: blocks of miniblocks of differences (Parquet format, Encodings.md).
type delta struct {
	data  []byte
	mini  int  // values per miniblock
	minis int  // miniblocks per block
	left  int  // values that are not read yet
	begun bool // the first value, which is in the header, was read

	last   uint64
	least  uint64 // minimum difference of the block
	widths []byte // bit widths of the block's remaining miniblocks

	packed []byte // the current miniblock
	width  uint
	unread int // its values
	block  []uint64
}

// newDelta reads the header. The page has at most n values.
func newDelta(data []byte, n int) (*delta, error) {
	d := &delta{data: data}
	size, ok1 := d.uvarint()
	minis, ok2 := d.uvarint()
	total, ok3 := d.uvarint()
	first, ok4 := d.uvarint()
	switch {
	case !ok1 || !ok2 || !ok3 || !ok4:
		return nil, corrupt("header of delta-encoded values")
	case minis == 0 || size == 0 || size%minis != 0 || size/minis%8 != 0 || size > math.MaxInt32:
		return nil, corrupt("delta-encoded values in blocks of %d with %d miniblocks", size, minis)
	case total > uint64(n):
		return nil, corrupt("%d delta-encoded values in a page of %d", total, n)
	}
	d.mini, d.minis, d.left = int(size/minis), int(minis), int(total)
	d.last = unzigzag(first)
	return d, nil
}

func (d *delta) uvarint() (uint64, bool) {
	v, n := binary.Uvarint(d.data)
	if n <= 0 {
		return 0, false
	}
	d.data = d.data[n:]
	return v, true
}

func unzigzag(v uint64) uint64 { return v>>1 ^ -(v & 1) }

// readDelta sets dst to the next values. Arithmetic wraps around, as it does in writers.
func readDelta[T uint32 | uint64](d *delta, dst []T) error {
	if len(dst) > d.left {
		return corrupt("the page has fewer delta-encoded values than its header says")
	}
	d.left -= len(dst)
	if len(dst) > 0 && !d.begun {
		d.begun = true
		dst[0] = T(d.last)
		dst = dst[1:]
	}
	for len(dst) > 0 {
		if d.unread == 0 {
			if err := d.miniblock(); err != nil {
				return err
			}
		}
		n := min(d.unread, len(dst), cap(d.block))
		block := d.block[:n]
		unpack(block, d.packed, (d.mini-d.unread)*int(d.width), d.width)
		last := d.last
		for i, v := range block {
			last += v + d.least
			dst[i] = T(last)
		}
		d.last = last
		d.unread -= n
		dst = dst[n:]
	}
	return nil
}

// miniblock starts the next miniblock.
func (d *delta) miniblock() error {
	if len(d.widths) == 0 {
		least, ok := d.uvarint()
		if !ok || len(d.data) < d.minis {
			return corrupt("header of a block of delta-encoded values")
		}
		d.least = unzigzag(least)
		d.widths, d.data = d.data[:d.minis], d.data[d.minis:]
	}
	d.width, d.widths = uint(d.widths[0]), d.widths[1:]
	if d.width > 64 {
		return corrupt("delta-encoded values of %d bits", d.width)
	}
	size := d.mini * int(d.width) / 8
	if size > len(d.data) {
		return corrupt("delta-encoded values end early")
	}
	d.packed, d.data = d.data[:size:size], d.data[size:]
	d.unread = d.mini
	if d.block == nil {
		d.block = make([]uint64, min(d.mini, 256))
	}
	return nil
}

// lengths decodes n delta-encoded lengths and returns the rest of data.
func lengths(data []byte, n int) (all []uint32, rest []byte, err error) {
	d, err := newDelta(data, n)
	if err != nil {
		return nil, nil, err
	}
	all = make([]uint32, d.left)
	if err := readDelta(d, all); err != nil {
		return nil, nil, err
	}
	for _, n := range all {
		if n > math.MaxInt32 {
			return nil, nil, corrupt("length %d of a value is negative", int32(n))
		}
	}
	return all, d.data, nil
}
