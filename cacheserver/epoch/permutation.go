// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package epoch computes the order of an epoch: which row is at which position, and which rank and worker read it.
//
// It implements versions 1 and 2 of the epoch order. All integers are unsigned 64-bit and wrap; divisions round down. Memory does not depend
// on the size of the data set: the permutation of a shuffled epoch is stored as eight words of keys.
package epoch

import (
	"fmt"
	"math/bits"
)

// limit is the exclusive upper bound of every count in an epoch; sums of two counts still fit 64 bits.
const limit = 1 << 62

// Constants of order version 1. They are part of the contract with clients.
const (
	golden     = 0x9E3779B97F4A7C15
	multiplier = 0xD6E8FEB86659FD93
	minBits    = 12
	rounds     = 8
)

// Permutation is the bijection P(n, seed, epoch) of [0, n): an unbalanced Feistel network with cycle walking.
//
// It is a value of twenty words, safe for concurrent use. The zero value maps everything to 0.
type Permutation struct {
	n    uint64
	low  uint64 // bits of the right half
	lo   uint64 // mask of the right half
	hi   uint64 // mask of the left half
	keys [rounds]uint64
	// carries is what the upper half of each key adds in its round; see forwardLanes.
	carries [rounds]uint64
}

// NewPermutation makes the permutation of [0, n) for a seed and an epoch number; 1 <= n < 2^62.
func NewPermutation(n, seed, epoch uint64) (Permutation, error) {
	if n < 1 || n >= limit {
		return Permutation{}, fmt.Errorf("permutation of n = %d: want 1 <= n < 2^62", n)
	}
	return newPermutation(n, seed, epoch), nil
}

// newPermutation is NewPermutation for a valid n.
func newPermutation(n, seed, epoch uint64) Permutation {
	width := uint(max(bits.Len64(n-1), minBits))
	low, high := width-width/2, width/2
	p := Permutation{n: n, low: uint64(low), lo: 1<<low - 1, hi: 1<<high - 1}
	state := mix(mix(seed+golden) + epoch)
	for i := range p.keys {
		state += golden
		p.keys[i] = mix(state)
		p.carries[i] = (p.keys[i] >> 32) * multiplier & (1<<32 - 1)
	}
	return p
}

// packSeed separates the order of packs from that of rows.
const packSeed = 0xA0761D6478BD642F

// PackPermutation is the bijection from the number of a pack to its slot, of n packs of a window that begins at a position of an epoch; 1 <= n < 2^62.
func PackPermutation(n, seed, epoch, position uint64) Permutation {
	return newPermutation(n, mix(seed+packSeed), mix(epoch)+position)
}

// mix is the finalizer of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// At is P(x); an x of n or more is taken modulo n.
func (p *Permutation) At(x uint64) uint64 {
	if p.n <= 1 {
		return 0
	}
	if x >= p.n {
		x %= p.n
	}
	return p.walk(p.forward(x))
}

// Inverse is the x with P(x) = y; a y of n or more is taken modulo n.
func (p *Permutation) Inverse(y uint64) uint64 {
	if p.n <= 1 {
		return 0
	}
	if y >= p.n {
		y %= p.n
	}
	for y = p.backward(y); y >= p.n; {
		y = p.backward(y)
	}
	return y
}

// walk repeats the permutation of the power of two until x is within [0, n). It terminates since the walk started within it.
func (p *Permutation) walk(x uint64) uint64 {
	for x >= p.n {
		x = p.forward(x)
	}
	return x
}

func (p *Permutation) forward(x uint64) uint64 {
	l, r := x>>p.low, x&p.lo
	for i := 0; i < rounds; i += 2 {
		l ^= scramble(r, p.keys[i]) & p.hi
		r ^= scramble(l, p.keys[i+1]) & p.lo
	}
	return l<<p.low | r
}

func (p *Permutation) backward(x uint64) uint64 {
	l, r := x>>p.low, x&p.lo
	for i := rounds - 2; i >= 0; i -= 2 {
		r ^= scramble(l, p.keys[i+1]) & p.lo
		l ^= scramble(r, p.keys[i]) & p.hi
	}
	return l<<p.low | r
}

func scramble(x, key uint64) uint64 { return (x ^ key) * multiplier >> 32 }
