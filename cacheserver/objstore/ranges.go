// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"cmp"
	"fmt"
	"slices"
)

// Range is the byte range [Offset, Offset+Length) of an object.
type Range struct {
	Offset, Length int64
}

// end is the offset after the range's last byte.
func (r Range) end() int64 { return r.Offset + r.Length }

// segment holds consecutive bytes of an object in memory.
type segment struct {
	off  int64
	data []byte
}

func (s segment) end() int64 { return s.off + int64(len(s.data)) }

// covers reports whether the segment contains r.
func (s segment) covers(r Range) bool { return s.off <= r.Offset && r.end() <= s.end() }

// join sorts ranges and merges those at most gap bytes apart, so that each resulting range is fetched by one request. Empty ranges
// are dropped.
func join(ranges []Range, gap int64) []Range {
	sorted := slices.Clone(ranges)
	sorted = slices.DeleteFunc(sorted, func(r Range) bool { return r.Length == 0 })
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Compare(a.Offset, b.Offset) })
	joined := sorted[:0]
	for _, r := range sorted {
		if n := len(joined); n > 0 && r.Offset-joined[n-1].end() <= max(gap, 0) {
			last := &joined[n-1]
			last.Length = max(last.end(), r.end()) - last.Offset
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// split divides r into the fewest parts of at most part bytes, of nearly equal length so that they take about equally long.
func split(r Range, part int64) []Range {
	n := (r.Length + part - 1) / part
	parts := make([]Range, 0, n)
	for i := range n {
		lo, hi := r.Length/n*i+min(i, r.Length%n), r.Length/n*(i+1)+min(i+1, r.Length%n)
		parts = append(parts, Range{Offset: r.Offset + lo, Length: hi - lo})
	}
	return parts
}

// missing returns what must be fetched so that all ranges are in memory: the joined ranges that no segment covers, without the part
// that the tail covers.
func missing(ranges []Range, near []segment, gap int64) []Range {
	wanted := slices.DeleteFunc(slices.Clone(ranges), func(r Range) bool {
		return slices.ContainsFunc(near, func(s segment) bool { return s.covers(r) })
	})
	joined := join(wanted, gap)
	for i := range joined {
		for _, s := range near {
			if r := &joined[i]; r.Offset < s.off && s.off < r.end() && r.end() <= s.end() {
				r.Length = s.off - r.Offset
			}
		}
	}
	return joined
}

// checkRanges returns an error if a range is not within an object of size bytes.
func checkRanges(uri string, ranges []Range, size int64) error {
	for _, r := range ranges {
		if r.Offset < 0 || r.Length < 0 || r.Offset > size || r.Length > size-r.Offset {
			return fmt.Errorf("prefetch %s: range of %d bytes at %d lies outside the object's %d bytes: the file is truncated or what names the range is of another file", uri, r.Length, r.Offset, size)
		}
	}
	return nil
}
