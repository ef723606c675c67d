// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bitmap reads, counts and writes the bits of Arrow's bitmaps, up to 64 at a time.
package bitmap

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// Writer appends bits and counts the set ones. It writes 8 bytes at a time. NewWriter makes one; it is not safe for concurrent use.
type Writer struct {
	dst  []byte
	at   int
	word uint64
	n    uint // number of bits in word, < 64
	ones int
}

// NewWriter returns a writer to dst, whose length is a multiple of 8.
func NewWriter(dst []byte) Writer { return Writer{dst: dst} }

// put appends the low k bits of b, k <= 64; the other bits must be zero.
func (w *Writer) put(b uint64, k uint) {
	w.word |= b << w.n
	if w.n+k < 64 {
		w.n += k
		return
	}
	binary.LittleEndian.PutUint64(w.dst[w.at:], w.word)
	w.ones += bits.OnesCount64(w.word)
	w.at += 8
	w.word = b >> (64 - w.n)
	w.n = w.n + k - 64
}

// Fill appends n equal bits.
func (w *Writer) Fill(one bool, n int) {
	var word uint64
	if one {
		word = ^uint64(0)
	}
	for ; n >= 64; n -= 64 {
		w.put(word, 64)
	}
	w.put(word&lowBits(n), uint(n))
}

// Take appends n bits of src, starting at bit at.
func (w *Writer) Take(src unsafe.Pointer, at int64, n int) {
	switch n {
	case 0:
		return
	case 1:
		w.put(uint64(*(*byte)(unsafe.Add(src, at>>3))>>(at&7)&1), 1)
		return
	}
	b := Bytes(src, at+int64(n))
	for ; n >= 64; n, at = n-64, at+64 {
		w.put(Load64(b, at), 64)
	}
	w.put(Load64(b, at)&lowBits(n), uint(n))
}

// Close writes the remaining bits, and zeros up to the end of dst. It returns how many bits are set.
func (w *Writer) Close() (ones int) {
	if w.n > 0 {
		binary.LittleEndian.PutUint64(w.dst[w.at:], w.word)
		w.ones += bits.OnesCount64(w.word)
		w.at += 8
	}
	clear(w.dst[w.at:])
	return w.ones
}

// Bytes returns the bytes that contain the first n bits at src.
func Bytes(src unsafe.Pointer, n int64) []byte {
	return unsafe.Slice((*byte)(src), (n+7)>>3)
}

// lowBits has the low n bits set, n < 64.
func lowBits(n int) uint64 {
	return uint64(1)<<uint(n) - 1
}

// Load64 returns up to 64 bits of b, starting at bit at; bits past the end of b are zero.
func Load64(b []byte, at int64) uint64 {
	i, shift := int(at>>3), uint(at&7)
	if i+9 <= len(b) {
		return binary.LittleEndian.Uint64(b[i:])>>shift | uint64(b[i+8])<<(64-shift)
	}
	var word uint64
	for k, v := range b[min(i, len(b)):] {
		word |= uint64(v) << (8 * k)
	}
	return word >> shift
}

// Ones counts the set bits among n bits of src, starting at bit at.
func Ones(src unsafe.Pointer, at int64, n int) int {
	if n == 0 {
		return 0
	}
	b := Bytes(src, at+int64(n))
	count := 0
	for ; n >= 64; n, at = n-64, at+64 {
		count += bits.OnesCount64(Load64(b, at))
	}
	return count + bits.OnesCount64(Load64(b, at)&lowBits(n))
}

// Run returns how many of n bits, starting at bit at, are equal to the first, and their value. n > 0.
func Run(src unsafe.Pointer, at int64, n int) (one bool, run int) {
	b := Bytes(src, at+int64(n))
	one = b[at>>3]>>(at&7)&1 == 1
	for run < n {
		word := Load64(b, at+int64(run))
		if one {
			word = ^word
		}
		equal := bits.TrailingZeros64(word)
		run += equal
		if equal < 64 {
			break
		}
	}
	return one, min(run, n)
}
