// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pick numbers the rows that a filter selects of a sequence of rows: row k of the selection is the k-th selected row.
package pick

import (
	"fmt"
	"math/bits"
)

// Index maps the selected rows, numbered from 0, to the rows of the sequence. It is immutable and safe for concurrent use. Make it with
// New.
//
// It has one of two forms. With many selected rows it is a bitmap with a directory: for each block of 512 rows the number of selected
// rows before it, and for each 512th selected row its block. With few it is the list of their numbers, which then is no larger.
type Index struct {
	rows, selected uint64
	hash           uint64

	list []uint32 // nil: the other fields are used

	words   []uint64 // bit i%64 of word i/64 says whether row i is selected; padded to whole blocks
	before  []uint32 // by block; then the number of selected rows
	samples []uint32 // the block of selected row 512*i; then the last block
}

const (
	blockWords = 8
	blockBits  = 64 * blockWords
	sampled    = 512 // selected rows per sample
	// sparse is the number of rows per selected row from which on a list is no larger than a bitmap.
	sparse = 32
)

// MaxRows is the number of rows that an index can cover.
const MaxRows = 1<<32 - 1

// Words is the number of words that New needs for the bits of n rows.
func Words(n uint64) int { return int((n + blockBits - 1) / blockBits * blockWords) }

// MaxBytes is the memory that New and the index of n rows need at most, including the words.
func MaxBytes(n uint64) int64 {
	words := 8 * int64(Words(n))
	directory := 4 * (words/(8*blockWords) + int64(n)/sampled + 3)
	list := 4 * (int64(n)/sparse + 1) // exists beside the words for a moment
	return words + max(directory, list)
}

// New makes the index of n rows, of which those whose bits are set in words are selected. It takes over words, which must have
// Words(n) elements, and zeros from bit n on.
func New(words []uint64, n uint64) (*Index, error) {
	if n > MaxRows {
		return nil, fmt.Errorf("index of %d rows: one data node can filter at most %d, add data nodes", n, uint64(MaxRows))
	}
	if len(words) != Words(n) {
		return nil, fmt.Errorf("index of %d rows: %d words, want %d", n, len(words), Words(n))
	}
	x := &Index{rows: n, words: words}
	for _, w := range words {
		x.selected += uint64(bits.OnesCount64(w))
		x.hash = fold(x.hash, w)
	}
	x.hash = fold(x.hash, n)
	if x.selected*sparse < n {
		x.makeList()
	} else {
		x.makeDirectory()
	}
	return x, nil
}

// fold adds a word to a hash.
func fold(hash, word uint64) uint64 {
	hash = (hash ^ word) * 0x9E3779B97F4A7C15
	return hash ^ hash>>29
}

func (x *Index) makeList() {
	x.list = make([]uint32, 0, x.selected)
	for i, w := range x.words {
		for ; w != 0; w &= w - 1 {
			x.list = append(x.list, uint32(i*64+bits.TrailingZeros64(w)))
		}
	}
	x.words = nil
}

func (x *Index) makeDirectory() {
	blocks := len(x.words) / blockWords
	x.before = make([]uint32, blocks+1)
	x.samples = make([]uint32, 0, x.selected/sampled+2)
	count := uint32(0)
	for b := range blocks {
		x.before[b] = count
		for _, w := range x.words[b*blockWords : (b+1)*blockWords] {
			count += uint32(bits.OnesCount64(w))
		}
		for uint64(len(x.samples))*sampled < uint64(count) {
			x.samples = append(x.samples, uint32(b))
		}
	}
	x.before[blocks] = count
	x.samples = append(x.samples, uint32(max(blocks-1, 0)))
}

// Rows is the number of rows of the sequence.
func (x *Index) Rows() uint64 { return x.rows }

// Len is the number of selected rows.
func (x *Index) Len() uint64 { return x.selected }

// Bytes is the memory of the index.
func (x *Index) Bytes() int64 {
	return 4*int64(cap(x.list)+cap(x.before)+cap(x.samples)) + 8*int64(cap(x.words))
}

// Hash is the same for equal selections of sequences of equal length, in every process and release.
func (x *Index) Hash() uint64 { return x.hash }
