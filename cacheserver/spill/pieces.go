// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

const (
	// mostPiece is the length of a piece where rows are short, and its maximum elsewhere.
	mostPiece = 32 << 10
	sumBytes  = 8
	// atOnce is the number of ranges of a chunk that are read concurrently.
	atOnce = 4
)

// PieceOf returns the length of the pieces of a chunk, by the mean length of its rows. A piece is verified as a whole, so it is read as a whole: for
// rows of two pages or more it is at most a quarter of a row, but at least a page.
func PieceOf(row int64) int64 {
	piece := int64(mostPiece)
	for row >= 2*offheap.PageSize && piece > offheap.PageSize && piece > row/4 {
		piece /= 2
	}
	return piece
}

// sums returns the checksums of the pieces of memory.
func sums(memory []byte, piece int64) []byte {
	out := make([]byte, 0, (int64(len(memory))+piece-1)/piece*sumBytes)
	for p := range slices.Chunk(memory, int(piece)) {
		out = binary.LittleEndian.AppendUint64(out, xxh3.Hash(p))
	}
	return out
}

// ReadRanges implements rows.Backing: it reads and verifies the pieces that contain the ranges. A short gap between two ranges is read too, since that
// costs less than a second read.
func (f *File) ReadRanges(i int, memory []byte, ranges []rows.Range) (read int64, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, r := range joined(ranges, f.head.Chunks[i].Piece, int64(len(memory))) {
		group.Go(func() error { return f.readRange(i, memory, r) })
		read += r.To - r.From
	}
	return read, group.Wait()
}

// joined extends the ranges of a chunk of size bytes to whole pieces, and merges those with short gaps between them. It sorts ranges.
func joined(ranges []rows.Range, piece, size int64) (whole []rows.Range) {
	slices.SortFunc(ranges, func(a, b rows.Range) int { return cmp.Compare(a.From, b.From) })
	for _, r := range ranges {
		r = rows.Range{From: r.From / piece * piece, To: min((r.To+piece-1)/piece*piece, size)}
		if last := len(whole) - 1; last >= 0 && r.From <= whole[last].To+rows.ReadBytes {
			whole[last].To = max(whole[last].To, r.To)
			continue
		}
		whole = append(whole, r)
	}
	return whole
}

// readRange reads and verifies whole pieces.
func (f *File) readRange(i int, memory []byte, r rows.Range) error {
	c := &f.head.Chunks[i]
	part := memory[r.From:r.To]
	if _, err := f.file.ReadAt(part, c.offset+r.From); err != nil {
		return fmt.Errorf("spill file %s: chunk %d: %w", f.name, i, err)
	}
	first := r.From / c.Piece * sumBytes
	if have := sums(part, c.Piece); !bytes.Equal(have, c.Sums[first:first+int64(len(have))]) {
		return fmt.Errorf("spill file %s: chunk %d: %w", f.name, i, ErrCorrupt)
	}
	return nil
}
