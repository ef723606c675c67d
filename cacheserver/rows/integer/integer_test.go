// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integer

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// TestKernelsEqualLoops compares the vector instructions with Go's loops.
func TestKernelsEqualLoops(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("this processor has no AVX2")
	}
	d := rand.New(rand.NewPCG(1, 1))
	src := make([]byte, 2000)
	for i := range src {
		src[i] = byte(d.Uint32())
	}
	equal := func(name string, size, from, bits int, vectors, loop func(dst []byte, src unsafe.Pointer, add int64)) {
		for n := range 100 {
			in := slices.Clone(src[:n*from+8])
			for i := range n { // in range
				for b := bits / 8; b < from; b++ {
					in[i*from+b] = 0
				}
			}
			got, want := make([]byte, n*size), make([]byte, n*size)
			add := int64(d.Uint64())
			if bits < 8*from {
				add = 0
			}
			vectors(got, unsafe.Pointer(&in[0]), add)
			loop(want, unsafe.Pointer(&in[0]), add)
			if !bytes.Equal(got, want) {
				t.Fatalf("%s of %d values: % x, want % x", name, n, got, want)
			}
		}
	}
	equal("widen8to16", 2, 1, 8, kernelOf[uint16, uint8](widen8to16), kernelOf[uint16, uint8](nil))
	equal("widen8to32", 4, 1, 8, kernelOf[int32, uint8](widen8to32), kernelOf[int32, uint8](nil))
	equal("widen16to32", 4, 2, 16, kernelOf[int32, uint16](widen16to32), kernelOf[int32, uint16](nil))
	equal("widen8to64", 8, 1, 8, kernelOf[int64, uint8](widen8to64), kernelOf[int64, uint8](nil))
	equal("widen16to64", 8, 2, 16, kernelOf[int64, uint16](widen16to64), kernelOf[int64, uint16](nil))
	equal("widen32to64", 8, 4, 32, kernelOf[int64, uint32](widen32to64), kernelOf[int64, uint32](nil))
	equal("narrow32to8", 1, 4, 8, kernelOf[uint8, int32](narrow32to8), kernelOf[uint8, int32](nil))
	equal("narrow32to16", 2, 4, 16, kernelOf[uint16, int32](narrow32to16), kernelOf[uint16, int32](nil))
	equal("narrow64to16", 2, 8, 16, kernelOf[uint16, int64](narrow64to16), kernelOf[uint16, int64](nil))
	equal("narrow64to32", 4, 8, 32, kernelOf[uint32, int64](narrow64to32), kernelOf[uint32, int64](nil))
}

func kernelOf[T, F number](k kernel) func(dst []byte, src unsafe.Pointer, add int64) {
	return func(dst []byte, src unsafe.Pointer, add int64) { convert[T, F](dst, src, add, k) }
}

func TestExtentEqualsLoop(t *testing.T) {
	d := rand.New(rand.NewPCG(2, 1))
	for range 300 {
		wide, short := make([]int64, 1+d.IntN(70)), make([]int32, 1+d.IntN(70))
		for i := range wide {
			wide[i] = int64(d.Uint64()) >> d.IntN(64)
		}
		for i := range short {
			short[i] = int32(d.Uint32()) >> d.IntN(32)
		}
		if least, most := extentOf(wide); least != slices.Min(wide) || most != slices.Max(wide) {
			t.Fatalf("%d to %d of %d", least, most, wide)
		}
		if least, most := extentOf(short); least != slices.Min(short) || most != slices.Max(short) {
			t.Fatalf("%d to %d of %d", least, most, short)
		}
	}
}
