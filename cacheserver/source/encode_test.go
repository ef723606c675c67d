// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// randomSplits returns splits with few files in few folders, and all kinds of numbers.
func randomSplits(r *rand.Rand, n int) []Split {
	numbers := []int64{0, 1, -1, 127, 128, math.MaxInt64, math.MinInt64, 100_000_000}
	number := func() int64 { return numbers[r.IntN(len(numbers))] }
	splits := make([]Split, n)
	for i := range splits {
		s := Split{
			File: fmt.Sprintf("%sf%d.parquet", []string{"", "s3://b/day=1/", "s3://b/day=2/"}[r.IntN(3)], r.IntN(3)), Version: []string{"", "etag"}[r.IntN(2)],
			FileSize: number(), Sequence: number(), RowGroup: r.IntN(1000), Start: number(), Length: number(), First: number(), Rows: number(), Bytes: number(), Exact: r.IntN(2) == 0, Deleted: number() * r.Int64N(2),
		}
		if r.IntN(3) == 0 {
			s.FirstRowID = new(number())
		}
		if i > 0 && r.IntN(2) == 0 {
			s.File, s.FileSize, s.Version = splits[i-1].File, splits[i-1].FileSize, splits[i-1].Version
		}
		splits[i] = s
	}
	return splits
}

func TestSplitsAreDecodedAsEncoded(t *testing.T) {
	r := seedtest.New(t)
	for range 300 {
		splits := randomSplits(r, r.IntN(20))
		data := EncodeSplits(splits)
		got, err := DecodeSplits(data)
		if err != nil || !cmp.Equal(splits, got) {
			t.Fatalf("%v, (-want +got):\n%s", err, cmp.Diff(splits, got))
		}
		if again := EncodeSplits(slices.Clone(splits)); !bytes.Equal(data, again) {
			t.Fatal("equal splits have different encodings")
		}
		for range 5 {
			if cut := r.IntN(len(data)); cut < len(data) {
				if _, err := DecodeSplits(data[:cut]); err == nil {
					t.Fatalf("%d of %d bytes are decoded", cut, len(data))
				}
			}
		}
	}
	if _, err := DecodeSplits([]byte{99}); err == nil {
		t.Error("another version is decoded")
	}
}

// TestSplitsTakeFewBytes checks the size of splits as on S3: long names and entity tags.
func TestSplitsTakeFewBytes(t *testing.T) {
	const n = 1000
	splits := make([]Split, n)
	for i := range splits {
		splits[i] = Split{
			File:     fmt.Sprintf("s3://training-data/warehouse/web/pages/data/day=2026-%02d-%02d/%05d-%d-9e3779b9-7f4a-4c15-8ebc-6af09c88c52d-00001.parquet", i%12+1, i%28+1, i, i%7),
			FileSize: 512 << 20, Version: fmt.Sprintf("%032x", i*7919), Sequence: 100, Start: 4, Length: 100_000_000, Rows: 50_000, Bytes: 100_000_000, Exact: true,
		}
	}
	if size := len(EncodeSplits(splits)) / n; size > 135 {
		t.Errorf("%d bytes a split, want at most 135", size)
	}
}

func FuzzDecodeSplits(f *testing.F) {
	f.Add(EncodeSplits(randomSplits(rand.New(rand.NewPCG(1, 1)), 5)))
	f.Add([]byte{1, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, data []byte) {
		splits, err := DecodeSplits(data)
		if err != nil {
			return
		}
		again, err := DecodeSplits(EncodeSplits(splits))
		if err != nil || !cmp.Equal(splits, again) {
			t.Errorf("%v: %+v became %+v", err, splits, again)
		}
	})
}
