// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

// block is how many indices are permuted before those that fell outside [0, n) are permuted again.
const block = 256

// Fill sets dst[i] = P(first+i); positions of n or more are taken modulo n. It permutes several indices at once, so it is a few times
// faster than At in a loop.
func (p *Permutation) Fill(dst []uint64, first uint64) {
	if p.n <= 1 {
		clear(dst)
		return
	}
	x := first % p.n
	for i := range dst {
		dst[i] = x
		if x++; x == p.n {
			x = 0
		}
	}
	p.apply(dst)
}

// apply replaces every x of xs, all of which lie within [0, n), by P(x).
func (p *Permutation) apply(xs []uint64) {
	if p.n <= 1 {
		clear(xs)
		return
	}
	for len(xs) > block {
		p.applyBlock(xs[:block])
		xs = xs[block:]
	}
	p.applyBlock(xs)
}

// applyBlock permutes at most a block: all indices once, then repeatedly the few that fell outside [0, n).
func (p *Permutation) applyBlock(xs []uint64) {
	p.forwardAll(xs)
	p.walkBlock(xs)
}

// forwardAll replaces every x of xs by forward(x).
func (p *Permutation) forwardAll(xs []uint64) {
	i := 0
	if n := len(xs) &^ 15; hasLanes && n > 0 {
		forwardLanes(p, xs[:n])
		i = n
	}
	for ; i+4 <= len(xs); i += 4 {
		x := xs[i : i+4 : i+4]
		x[0], x[1], x[2], x[3] = p.forward4(x[0], x[1], x[2], x[3])
	}
	for ; i < len(xs); i++ {
		xs[i] = p.forward(xs[i])
	}
}

// walkBlock permutes the indices outside [0, n) until none is left.
func (p *Permutation) walkBlock(xs []uint64) {
	var buffer [block]uint8
	walkers := 0
	for i, x := range xs {
		buffer[walkers&(block-1)] = uint8(i)
		walkers += outside(x, p.n)
	}
	for walkers > 0 {
		walkers = p.step(xs, buffer[:min(walkers, block)])
	}
}

// step permutes each walker (index outside [0, n)) once, moves those still outside to the front and returns their number.
func (p *Permutation) step(xs []uint64, walkers []uint8) int {
	var at [block]uint64
	for i, w := range walkers {
		at[i] = xs[w]
	}
	p.forwardAll(at[:len(walkers)])
	left := 0
	for i, w := range walkers {
		xs[w] = at[i]
		walkers[left] = w
		left += outside(at[i], p.n)
	}
	return left
}

// outside is 1 if x >= n, otherwise 0, computed without a branch; both are below 2^63.
func outside(x, n uint64) int { return int((n - 1 - x) >> 63) }

// forward4 interleaves the rounds of four indices, so that the CPU overlaps their multiplications.
func (p *Permutation) forward4(a, b, c, d uint64) (uint64, uint64, uint64, uint64) {
	low, lo, hi := p.low&63, p.lo, p.hi
	al, ar := a>>low, a&lo
	bl, br := b>>low, b&lo
	cl, cr := c>>low, c&lo
	dl, dr := d>>low, d&lo
	for i := 0; i < rounds; i += 2 {
		k := p.keys[i]
		al ^= scramble(ar, k) & hi
		bl ^= scramble(br, k) & hi
		cl ^= scramble(cr, k) & hi
		dl ^= scramble(dr, k) & hi
		k = p.keys[i+1]
		ar ^= scramble(al, k) & lo
		br ^= scramble(bl, k) & lo
		cr ^= scramble(cl, k) & lo
		dr ^= scramble(dl, k) & lo
	}
	return al<<low | ar, bl<<low | br, cl<<low | cr, dl<<low | dr
}
