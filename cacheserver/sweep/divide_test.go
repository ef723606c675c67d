// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"math"
	"testing"
)

func TestDivide(t *testing.T) {
	const kib, unit = 1 << 10, 16 << 20
	for _, c := range []struct {
		memory, rows float64 // in units
		row, around  int64
		stay, reads  float64 // stay in units
		apart        bool
	}{
		{100, 0, 1, 32 * kib, 0, 0, false},
		{100, 100, 1, 32 * kib, 100, 0, false},
		{900, 1000, 1, 32 * kib, 395 / 0.55, 1 - 0.395/0.55, false}, // 718 units stay; the sweep's parts in the other 182 span 282
		{500, 1000, 1, 32 * kib, 0, 1 / (1.55 * 0.5), false},
		{250, 1000, 1, 32 * kib, 0, 1 / (1.55 * 0.25), false},
		{500, 1000, 20 * kib, 4 * kib, 0, 1 / (1.55 * 0.5), false},
		{500, 1000, 128 * kib, 32 * kib, 437.5, 0.5625 * 5 / 4, true},
		{250, 1000, 128 * kib, 32 * kib, 218.75, 0.78125 * 5 / 4, true},
		{80, 1000, 20 * kib, 4 * kib, 70, 0.93 * 6 / 5, true},
		{80, 1000, 1 * kib, 32 * kib, 0, 1 / (1.55 * 0.08), false},
		{4, 1000, 128 * kib, 32 * kib, 3, 0.997 * 5 / 4, true}, // a unit is 128 rows, the minimum for the sweep
		{1, 1000, 128 * kib, 32 * kib, 0, 1 / (1.55 * 0.001), false},
	} {
		d := Divide(int64(c.memory*unit), int64(c.rows*unit), c.row, c.around)
		if math.Abs(float64(d.Stay)-c.stay*unit) > 1 || math.Abs(d.Reads-c.reads) > 1e-6 || d.Apart != c.apart {
			t.Errorf("%v units of memory for %v of rows of %d bytes: %v, want %v units, %v and %v", c.memory, c.rows, c.row, d, c.stay, c.reads, c.apart)
		}
	}
}
