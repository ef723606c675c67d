// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// TestTransposeEqualsCopy compares columns transposed several at a time with columns copied value by value, for various numbers of
// rows and positions of the columns in a row.
func TestTransposeEqualsCopy(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("this processor has no transpose")
	}
	for _, seed := range seedtest.Seeds(t, 300) {
		d := newDice(t, seed)
		together, width := 4, []int{4, 8}[d.IntN(2)]
		if d.IntN(3) == 0 {
			together, width = 8, 8
		}
		size := together * width
		first := d.IntN(stripBytes - size + 1)
		s := &strip{stride: first + size + d.IntN(stripBytes-first-size+1)}
		n, at := 1+d.IntN(2*stripBlock), d.IntN(5)

		rows := make([]byte, n*s.stride)
		for i := range rows {
			rows[i] = byte(d.Uint32())
		}
		var parts, want []part
		for i := range together {
			column := &node{kind: kindFixed, width: width, strip: s, at: first + i*width}
			parts = append(parts, part{node: column, dst: make([]byte, (at+n)*width)})
			want = append(want, part{node: column, dst: make([]byte, (at+n)*width)})
		}
		if got := alike(parts); got != together {
			t.Fatalf("seed %d: of %d columns of %d bytes from byte %d on %d are alike", seed, together, width, first, got)
		}
		from := unsafe.Pointer(&rows[first])
		done := transpose(parts, from, s.stride, n, at)
		if n-done >= 8 {
			t.Errorf("seed %d: %d of %d rows are left out", seed, n-done, n)
		}
		for i := range want {
			get(&want[i], unsafe.Add(from, i*width), s.stride, done, at)
			if !bytes.Equal(parts[i].dst, want[i].dst) {
				t.Fatalf("seed %d: column %d of %d bytes, %d rows of %d bytes: % x, want % x", seed, i, width, n, s.stride, parts[i].dst, want[i].dst)
			}
		}
	}
}
