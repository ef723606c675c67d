// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"testing"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

func TestTouchesEqualsPlainReference(t *testing.T) {
	rng := seedtest.New(t)
	for range 3000 {
		e, s := randomEpoch(rng)
		e.Shuffle = false
		rows := map[uint64]bool{}
		for _, row := range flatten(slowRank(t, e, s)) {
			rows[row] = true
		}
		for range 20 {
			lo := rng.Uint64N(e.Rows + 2)
			hi := lo + rng.Uint64N(e.Rows+2)
			want := false
			for row := lo; row < hi; row++ {
				want = want || rows[row]
			}
			if got := e.Touches(s, lo, hi); got != want {
				t.Fatalf("%+v %+v: touches [%d, %d): %t, want %t", e, s, lo, hi, got, want)
			}
		}
	}
}
