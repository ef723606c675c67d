// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"errors"
	"fmt"
	"math/bits"
)

// Tail selects what happens to the last positions of an epoch if they don't fill a global batch.
type Tail string

// The tail modes of order version 1.
const (
	Drop Tail = "drop" // they are not used in this epoch
	Pad  Tail = "pad"  // the last step is filled up with positions from the start of the epoch, which are marked invalid
	Keep Tail = "keep" // the last step is shorter
)

// Epoch describes one pass over a data set: its rows in sequence, divided into steps of a global batch.
//
// It is a plain value, safe for concurrent use. The zero value is invalid; an invalid value has no steps.
type Epoch struct {
	Rows        uint64 // rows of the data set, below 2^62; 0 is an empty epoch
	Seed        uint64
	Number      uint64 // number of the epoch
	Shuffle     bool
	Clump       uint64 // number of consecutive rows that are shuffled as a unit; read only if Shuffle
	GlobalBatch uint64 // number of positions of a full step
	Tail        Tail
	Lanes       bool   `json:",omitzero"` // order version 2, in which a rank reads few ranges of the rows; only if Shuffle
	Window      uint64 `json:",omitzero"` // number of consecutive clumps of the sequence whose rows are shuffled; 0: none; read only if Shuffle
}

// Validate returns an error for the first invalid field, with its name on the wire, its value and the values allowed.
func (e Epoch) Validate() error {
	if e.Rows >= limit {
		return fmt.Errorf("rows = %d: want rows < 2^62", e.Rows)
	}
	if e.Shuffle && (e.Clump < 1 || e.Clump >= limit) {
		return fmt.Errorf("clump = %d: want 1 <= clump < 2^62", e.Clump)
	}
	if e.Shuffle && e.Window >= limit {
		return fmt.Errorf("window = %d: want 0 <= window < 2^62", e.Window)
	}
	if e.GlobalBatch < 1 || e.GlobalBatch >= limit {
		return fmt.Errorf("global_batch = %d: want 1 <= global_batch < 2^62", e.GlobalBatch)
	}
	if e.Lanes && !e.Shuffle {
		return errors.New("order = 2: want shuffle = true; without it, the order has version 1 alone")
	}
	if e.Lanes && e.GlobalBatch < leastLaned {
		return fmt.Errorf("global_batch = %d: want at least %d with order = 2", e.GlobalBatch, leastLaned)
	}
	switch e.Tail {
	case Drop, Pad, Keep:
		return nil
	}
	return fmt.Errorf("tail = %q: want %q, %q or %q", string(e.Tail), Drop, Pad, Keep)
}

// Steps is the number of steps, the same for every rank.
func (e Epoch) Steps() uint64 {
	if e.Validate() != nil {
		return 0
	}
	return e.steps()
}

func (e Epoch) steps() uint64 {
	if e.Tail == Drop {
		return e.Rows / e.GlobalBatch
	}
	return ceil(e.Rows, e.GlobalBatch)
}

// fullSteps is the number of steps, counted from the first, that have GlobalBatch positions.
func (e Epoch) fullSteps() uint64 {
	if e.Tail == Pad {
		return e.steps()
	}
	return e.Rows / e.GlobalBatch
}

// Step returns the first position of step s and its number of positions. With Pad, positions from Rows on stand for position mod Rows
// and are not valid. Steps beyond the last are empty.
func (e Epoch) Step(s uint64) (first, size uint64) {
	if s >= e.Steps() {
		return 0, 0
	}
	return s * e.GlobalBatch, e.size(s)
}

func (e Epoch) size(s uint64) uint64 {
	if e.Tail == Keep {
		return min(e.GlobalBatch, e.Rows-s*e.GlobalBatch)
	}
	return e.GlobalBatch
}

// Shard is the share of [0, n) with the given index, of total nearly equal shares: lo = floor(index*n/total) and hi =
// floor((index+1)*n/total), with 128-bit products. For an index of total or more it is the empty range [n, n).
func Shard(index, total, n uint64) (lo, hi uint64) {
	if index >= total {
		return n, n
	}
	return scale(index, n, total), scale(index+1, n, total)
}

// scale is floor(a*n/total) for a <= total.
func scale(a, n, total uint64) uint64 {
	if a == total {
		return n
	}
	high, low := bits.Mul64(a, n)
	quotient, _ := bits.Div64(high, low, total)
	return quotient
}

func ceil(a, b uint64) uint64 {
	if a%b == 0 {
		return a / b
	}
	return a/b + 1
}
