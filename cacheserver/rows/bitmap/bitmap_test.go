// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package bitmap

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

// TestBitmap compares the bit functions with implementations that handle one bit at a time.
func TestBitmap(t *testing.T) {
	d := rand.New(rand.NewPCG(9, 1))
	src := make([]byte, 64)
	for i := range src {
		src[i] = byte(d.Uint64() | d.Uint64()<<3)
	}
	p := unsafe.Pointer(&src[0])
	bit := func(b []byte, i int) bool { return b[i/8]>>(i%8)&1 == 1 }
	for range 3000 {
		at := d.IntN(200)
		n := d.IntN(len(src)*8 - at - 64)
		lead := d.IntN(70)
		dst := make([]byte, 128)
		for i := range dst {
			dst[i] = 0xFF
		}
		w := NewWriter(dst)
		w.Fill(true, lead)
		w.Take(p, int64(at), n)
		w.Fill(false, lead)
		set := w.Close()
		count := 0
		for i := range n {
			if bit(src, at+i) {
				count++
			}
			if bit(dst, lead+i) != bit(src, at+i) {
				t.Fatalf("bit %d of %d from %d after %d", i, n, at, lead)
			}
		}
		if got := Ones(p, int64(at), n); got != count || set != lead+count {
			t.Fatalf("%d bits from %d: %d ones, writer %d, want %d and %d", n, at, got, set, count, lead+count)
		}
		for i := lead + n; i < len(dst)*8; i++ {
			if bit(dst, i) {
				t.Fatalf("bit %d after %d bits is set", i, lead+n)
			}
		}
		if n == 0 {
			continue
		}
		one, run := Run(p, int64(at), n)
		want := 1
		for want < n && bit(src, at+want) == bit(src, at) {
			want++
		}
		if one != bit(src, at) || run != want {
			t.Fatalf("run from %d of %d: %v %d, want %d", at, n, one, run, want)
		}
	}
}

func TestLongRun(t *testing.T) {
	src := make([]byte, 100)
	for i := 300; i < 700; i++ {
		src[i/8] |= 1 << (i % 8)
	}
	for _, c := range []struct {
		at, n int
		one   bool
		run   int
	}{{0, 800, false, 300}, {300, 500, true, 400}, {300, 400, true, 400}, {301, 10, true, 10}, {700, 100, false, 100}, {5, 100, false, 100}} {
		if one, run := Run(unsafe.Pointer(&src[0]), int64(c.at), c.n); one != c.one || run != c.run {
			t.Errorf("from %d of %d: %v %d, want %v %d", c.at, c.n, one, run, c.one, c.run)
		}
	}
}
