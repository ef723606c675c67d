// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"math/bits"
	"slices"
)

// fit puts pieces into packs: the longest first, into the cheapest pack if it has room; otherwise into the pack with the least room that fits,
// and of these into the one that has had it for the shortest time.
type fit struct {
	law    Law
	pieces []Piece
	sizes  []int32 // of the pieces, in tokens of packs
	of     []int32 // the result: the pack of each piece

	order []int32 // the pieces, longest first
	count []int32 // of pieces by size; then where those of a size go in order
	room  []int32 // of each pack
	// Packs with equal room are a list, in the order in which they got it: its last pack by room, and the neighbors of each pack.
	last          []int32
	before, after []int32
	rooms         bitset // rooms that a pack has
	packs         heap
}

func newFit(l Law, pieces []Piece) *fit {
	packs, tokens, n := l.packs(), int(l.Tokens), len(pieces)
	f := &fit{
		law: l, pieces: pieces, sizes: make([]int32, n), of: make([]int32, n), order: make([]int32, n), count: make([]int32, tokens+1), last: make([]int32, tokens+1),
		room: make([]int32, packs), before: make([]int32, packs), after: make([]int32, packs), rooms: newBitset(tokens + 1),
		packs: heap{make([]uint64, packs), make([]int32, packs), make([]int32, packs)},
	}
	for i, p := range pieces {
		f.sizes[i] = int32(l.round(int64(p.Length)))
	}
	return f
}

// fit reports whether the first pieces fit into a number of packs, and if they do, sets of.
func (f *fit) fit(pieces, packs int) bool {
	f.begin(packs)
	f.sort(pieces)
	f.of = f.of[:pieces]
	for _, i := range f.order {
		size := f.sizes[i]
		pack := f.packs.first()
		if f.room[pack] < size {
			room := f.rooms.next(int(size))
			if room < 0 {
				return false
			}
			pack = f.last[room]
		}
		f.remove(pack)
		f.room[pack] -= size
		f.add(pack)
		f.packs.raise(pack, f.law.cost(int64(size)))
		f.of[i] = pack
	}
	return true
}

// begin empties a number of packs.
func (f *fit) begin(packs int) {
	f.rooms.reset()
	f.packs.reset(packs)
	f.room = f.room[:packs]
	for pack := packs - 1; pack >= 0; pack-- {
		f.room[pack] = int32(f.law.Tokens)
		f.add(int32(pack))
	}
}

// sort sets order: by counting, which keeps the order of pieces of equal size.
func (f *fit) sort(pieces int) {
	f.order = f.order[:pieces]
	clear(f.count)
	for _, size := range f.sizes[:pieces] {
		f.count[size]++
	}
	sum := int32(0)
	for size, count := range slices.Backward(f.count) {
		f.count[size], sum = sum, sum+count
	}
	for i, size := range f.sizes[:pieces] {
		at := &f.count[size]
		f.order[*at] = int32(i)
		*at++
	}
}

// add makes a pack the last one of those with its room.
func (f *fit) add(pack int32) {
	room := f.room[pack]
	f.before[pack], f.after[pack] = -1, -1
	if f.rooms.has(int(room)) {
		f.before[pack] = f.last[room]
		f.after[f.last[room]] = pack
	}
	f.rooms.set(int(room))
	f.last[room] = pack
}

// remove removes a pack from those with its room.
func (f *fit) remove(pack int32) {
	before, after := f.before[pack], f.after[pack]
	if before >= 0 {
		f.after[before] = after
	}
	switch {
	case after >= 0:
		f.before[after] = before
	case before >= 0:
		f.last[f.room[pack]] = before
	default:
		f.rooms.clear(int(f.room[pack]))
	}
}

// bitset is a set of small integers: its bits, and above them bits that say which words are not zero, in levels.
type bitset [][]uint64

func newBitset(n int) (b bitset) {
	for {
		n = (n + 63) / 64
		b = append(b, make([]uint64, n))
		if n == 1 {
			return b
		}
	}
}

func (b bitset) reset() {
	for _, level := range b {
		clear(level)
	}
}

func (b bitset) has(i int) bool { return b[0][i>>6]>>(i&63)&1 != 0 }

func (b bitset) set(i int) {
	for _, level := range b {
		level[i>>6] |= 1 << (i & 63)
		i >>= 6
	}
}

func (b bitset) clear(i int) {
	for _, level := range b {
		level[i>>6] &^= 1 << (i & 63)
		if level[i>>6] != 0 {
			return
		}
		i >>= 6
	}
}

// next is the least element of at least i; -1 if there is none.
func (b bitset) next(i int) int {
	for l, level := range b {
		if i>>6 >= len(level) {
			return -1
		}
		if rest := level[i>>6] >> (i & 63); rest != 0 {
			i += bits.TrailingZeros64(rest)
			for ; l > 0; l-- {
				i = i<<6 + bits.TrailingZeros64(b[l-1][i])
			}
			return i
		}
		i = i>>6 + 1
	}
	return -1
}

// heap orders packs by cost, then by number. Costs only grow.
type heap struct {
	costs []uint64
	packs []int32 // the heap
	at    []int32 // the place of each pack in it
}

// reset makes a heap of packs without cost.
func (h *heap) reset(packs int) {
	clear(h.costs)
	h.packs = h.packs[:packs]
	for i := range h.packs {
		h.packs[i], h.at[i] = int32(i), int32(i)
	}
}

func (h *heap) first() int32 { return h.packs[0] }

// raise adds to the cost of a pack.
func (h *heap) raise(pack int32, cost uint64) {
	h.costs[pack] += cost
	i := int(h.at[pack])
	for child := 2*i + 1; child < len(h.packs); child = 2*i + 1 {
		if child+1 < len(h.packs) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.packs[i], h.packs[child] = h.packs[child], h.packs[i]
		h.at[h.packs[i]], h.at[h.packs[child]] = int32(i), int32(child)
		i = child
	}
}

func (h *heap) less(i, j int) bool {
	a, b := h.packs[i], h.packs[j]
	return h.costs[a] < h.costs[b] || h.costs[a] == h.costs[b] && a < b
}
