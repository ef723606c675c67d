// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"iter"
	"sort"
	"unsafe"

	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
)

// sparse reports whether at least a quarter of the rows are dropped: then the kept rows are copied at once, so that the batch does
// not stay in memory for a few of its rows.
func sparse(keep []byte, rows int) bool {
	return keep != nil && bitmap.Ones(unsafe.Pointer(unsafe.SliceData(keep)), 0, rows)*4 < rows*3
}

// runs yields the start and length of each run of kept rows in [lo, hi).
func (s *source) runs(lo, hi int64) iter.Seq2[int64, int64] {
	return func(yield func(int64, int64) bool) {
		if s.keep == nil {
			_ = lo == hi || yield(lo, hi-lo)
			return
		}
		bits := unsafe.Pointer(unsafe.SliceData(s.keep))
		for lo < hi {
			one, run := bitmap.Run(bits, lo, int(hi-lo))
			if one && !yield(lo, int64(run)) {
				return
			}
			lo += int64(run)
		}
	}
}

// kept is the first kept row at or after row at, or the number of rows.
func (s *source) kept(at int64) int64 {
	for first := range s.runs(at, s.rows) {
		return first
	}
	return s.rows
}

// rawKept is the rawRows of the kept rows in [lo, hi).
func (b *Builder) rawKept(src int, lo, hi int64) int64 {
	total := int64(0)
	for at, n := range b.sources[src].runs(lo, hi) {
		total += b.rawRows(src, at, at+n)
	}
	return total
}

// fit is the end of the unsealed kept rows of a source whose raw size is at most want.
func (b *Builder) fit(src int, want int64) int64 {
	s := &b.sources[src]
	end := s.next
	for at, n := range s.runs(s.next, s.rows) {
		size := b.rawRows(src, at, at+n)
		if size > want {
			return at + int64(sort.Search(int(n), func(k int) bool { return b.rawRows(src, at, at+int64(k)+1) > want }))
		}
		want -= size
		end = at + n
	}
	return end
}
