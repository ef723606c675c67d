// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

func TestRowsThatNoWindowHoldsAreRefused(t *testing.T) {
	for long, length := range map[Long]int32{Refuse: 17, Split: 49} {
		l := Law{Tokens: 16, Packs: 3, Window: 1, Multiple: 1, Long: long}
		var refused *LongError
		for lengths := []int32{1, 16, length, 1}; ; {
			w, err := l.Pack(lengths, 0, 0, 0)
			if errors.As(err, &refused) {
				break
			}
			if err != nil || w.Rows == len(lengths) {
				t.Fatalf("%s: a row of %d tokens is packed into packs of 16, error %v", long, length, err)
			}
			lengths = lengths[w.Rows:]
		}
		if refused.Length != length {
			t.Errorf("%s: refused a row of %d tokens, want %d", long, refused.Length, length)
		}
	}
}

// TestManyPieces splits the longest rows that there are into the shortest pieces.
func TestManyPieces(t *testing.T) {
	l := Law{Tokens: MostTokens, Packs: MostPacks, Window: 1, Multiple: 1, Quadratic: Quadratic, Long: Split}
	w, err := l.Pack([]int32{math.MaxInt32, 0, 5}, 1, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	tokens := int64(0)
	for _, p := range w.Pieces {
		tokens += int64(p.Length)
	}
	if w.Rows != 3 || tokens != math.MaxInt32+5 || w.Counts != (Counts{Rows: 3, Empty: 1, Split: 1}) {
		t.Errorf("%d rows, %d tokens, %+v", w.Rows, tokens, w.Counts)
	}
}

func BenchmarkPack(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	lengths := make([]int32, 8192)
	for i := range lengths {
		lengths[i] = int32(min(max(math.Exp(6.4+r.NormFloat64()), 16), 8192))
	}
	l := Law{Tokens: 8192, Packs: 512, Window: 1, Multiple: 1, Quadratic: Quadratic, Long: Refuse}
	rows := 0
	for b.Loop() {
		w, err := l.Pack(lengths, 1, 2, 3)
		if err != nil {
			b.Fatal(err)
		}
		rows += w.Rows
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
}
