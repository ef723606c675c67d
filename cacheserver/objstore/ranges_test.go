// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// sortRanges sorts Range headers by their start.
func sortRanges(headers []string) {
	start := func(h string) (n int64) {
		_, _ = fmt.Sscanf(h, "bytes=%d-", &n) // start stays 0 if the header doesn't match
		return n
	}
	slices.SortFunc(headers, func(a, b string) int { return cmp.Compare(start(a), start(b)) })
}

// TestJoinAndSplitCoverEveryByteOnce checks for random ranges that every requested byte is fetched exactly once, that no part is too
// long, and that the only other bytes read are in gaps.
func TestJoinAndSplitCoverEveryByteOnce(t *testing.T) {
	r := seedtest.New(t)
	const size = 300
	for range 2000 {
		gap, part := r.Int64N(20), 1+r.Int64N(50)
		var asked [size]bool
		var in []Range
		for range r.IntN(10) {
			off := r.Int64N(size)
			in = append(in, Range{off, r.Int64N(size - off + 1)})
			for i := off; i < in[len(in)-1].end(); i++ {
				asked[i] = true
			}
		}
		var fetched [size]int
		for _, run := range join(in, gap) {
			for _, p := range split(run, part) {
				if p.Length < 1 || p.Length > part {
					t.Fatalf("part %v, want 1 to %d bytes", p, part)
				}
				for i := p.Offset; i < p.end(); i++ {
					fetched[i]++
				}
			}
		}
		checkFetched(t, in, asked[:], fetched[:], int(gap))
	}
}

func checkFetched(t *testing.T, in []Range, asked []bool, fetched []int, gap int) {
	t.Helper()
	extra := 0
	for i := range asked {
		if asked[i] && fetched[i] != 1 || fetched[i] > 1 {
			t.Fatalf("%v: byte %d fetched %d times", in, i, fetched[i])
		}
		extra++
		if asked[i] || fetched[i] == 0 {
			extra = 0
		}
		if extra > gap {
			t.Fatalf("%v: a gap of more than %d bytes is read, at %d", in, gap, i)
		}
	}
}
