// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"math"
	"testing"
)

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		memory, rows, stay int64
		reads              float64
	}{
		{100, 0, 0, 0},
		{100, 100, 100, 0},
		{900, 1000, 718, 0.282}, // the other 182 bytes span 282
		{500, 1000, 0, 1 / (1.55 * 0.5)},
		{250, 1000, 0, 1 / (1.55 * 0.25)},
	} {
		if stay, reads := Divide(c.memory, c.rows); stay != c.stay || math.Abs(reads-c.reads) > 1e-9 {
			t.Errorf("%d bytes of memory for %d bytes of rows: %d stay and they are read %v times, want %d and %v", c.memory, c.rows, stay, reads, c.stay, c.reads)
		}
	}
}
