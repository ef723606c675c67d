// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"math"
	"testing"
)

func TestDivide(t *testing.T) {
	const kib = 1 << 10
	for _, c := range []struct {
		memory, rows, row, around, stay int64
		reads                           float64
	}{
		{100, 0, 0, 32 * kib, 0, 0},
		{100, 100, 1, 32 * kib, 100, 0},
		{900, 1000, 1, 32 * kib, 718, 0.282}, // the other 182 bytes span 282
		{500, 1000, 1, 32 * kib, 0, 1 / (1.55 * 0.5)},
		{250, 1000, 1, 32 * kib, 0, 1 / (1.55 * 0.25)},
		{500, 1000, 20 * kib, 4 * kib, 0, 1 / (1.55 * 0.5)},
		{500, 1000, 128 * kib, 32 * kib, 438, 0.562 * 5 / 4},
		{250, 1000, 128 * kib, 32 * kib, 219, 0.781 * 5 / 4},
		{80, 1000, 20 * kib, 4 * kib, 70, 0.93 * 6 / 5},
		{80, 1000, 1 * kib, 32 * kib, 0, 1 / (1.55 * 0.08)},
	} {
		if stay, reads := Divide(c.memory, c.rows, c.row, c.around); stay != c.stay || math.Abs(reads-c.reads) > 1e-9 {
			t.Errorf("%d bytes of memory for %d bytes of rows of %d bytes: %d stay and they are read %v times, want %d and %v", c.memory, c.rows, c.row, stay, reads, c.stay, c.reads)
		}
	}
}
