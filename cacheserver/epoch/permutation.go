// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package epoch is an epoch as pure arithmetic: which row stands at which position, and whose it is.
//
// It implements version 1 of the epoch order. All integers are unsigned 64-bit and wrap; divisions floor.
// Nothing here allocates by the size of the data set: a shuffled epoch of any size is eight words of keys.
package epoch

import (
	"fmt"
	"math/bits"
)

// limit is the exclusive bound of every count in an epoch; sums of two counts still fit 64 bits.
const limit = 1 << 62

// Constants of the order, version 1. They are part of the contract with the clients.
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
	// carries is what the upper half of each key adds to its round, see forwardLanes.
	carries [rounds]uint64
}

// NewPermutation makes the permutation of [0, n) for a seed and an epoch number; 1 <= n < 2^62.
func NewPermutation(n, seed, epoch uint64) (Permutation, error) {
	if n < 1 || n >= limit {
		return Permutation{}, fmt.Errorf("permutation of n = %d: want 1 <= n < 2^62", n)
	}
	width := uint(max(bits.Len64(n-1), minBits))
	low, high := width-width/2, width/2
	p := Permutation{n: n, low: uint64(low), lo: 1<<low - 1, hi: 1<<high - 1}
	state := mix(mix(seed+golden) + epoch)
	for i := range p.keys {
		state += golden
		p.keys[i] = mix(state)
		p.carries[i] = (p.keys[i] >> 32) * multiplier & (1<<32 - 1)
	}
	return p, nil
}

// mix is the finaliser of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// At is P(x). An x of n or more counts as x mod n.
func (p *Permutation) At(x uint64) uint64 {
	if p.n <= 1 {
		return 0
	}
	if x >= p.n {
		x %= p.n
	}
	return p.walk(p.forward(x))
}

// Inverse is the x with P(x) = y. A y of n or more counts as y mod n.
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

// walk applies the rounds until x lies within [0, n). It ends because the walk began there.
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
