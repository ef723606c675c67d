// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// validity is the validity bitmap of the slots so far; it is empty while none is null.
type validity struct {
	bits  output
	slots int
	nulls int
	hint  int // expected number of slots
}

func (v *validity) begin(mem memory.Allocator, hint int) {
	*v = validity{bits: output{mem: mem}, hint: hint}
}

// grow makes room for n more slots and returns the bitmap.
func (v *validity) grow(n int) []byte {
	if v.bits.buf == nil {
		v.bits.reserve(int(bitutil.BytesForBits(int64(max(v.hint, v.slots+n)))))
	}
	v.bits.resize(int(bitutil.BytesForBits(int64(v.slots + n))))
	return v.bits.bytes()
}

// add appends n slots that are all valid or all null.
func (v *validity) add(valid bool, n int) {
	if valid && v.nulls == 0 {
		v.slots += n
		return
	}
	first := v.nulls == 0
	bits := v.grow(n)
	if first {
		bitutil.SetBitsTo(bits, 0, int64(v.slots), true)
	}
	bitutil.SetBitsTo(bits, int64(v.slots), int64(n), valid)
	v.slots += n
	if !valid {
		v.nulls += n
	}
}

// copy appends n slots with the bits of src, starting at bit at, and returns how many are valid.
func (v *validity) copy(src []byte, at, n int) int {
	ones := bitutil.CountSetBits(src, at, n)
	if ones == n || ones == 0 {
		v.add(ones == n, n)
		return ones
	}
	first := v.nulls == 0
	bits := v.grow(n)
	if first {
		bitutil.SetBitsTo(bits, 0, int64(v.slots), true)
	}
	bitutil.CopyBitmap(src, at, n, bits, v.slots)
	v.slots += n
	v.nulls += n - ones
	return ones
}

// take appends n slots of a column whose definition level 0 means null, and returns how many are valid.
func (v *validity) take(def *hybrid, n int) (ones int, err error) {
	for n > 0 {
		if err := def.run(); err != nil {
			return 0, err
		}
		k := min(def.left, n)
		switch {
		case def.packed != nil:
			ones += v.copy(def.packed, def.at, k)
		case def.value > 1:
			return 0, corrupt("definition level")
		default:
			v.add(def.value == 1, k)
			ones += k * int(def.value)
		}
		def.skip(k)
		n -= k
	}
	return ones, nil
}

// finish returns the bitmap, nil if no slot is null, and resets it.
func (v *validity) finish() *memory.Buffer {
	return v.bits.finish()
}
