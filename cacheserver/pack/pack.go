// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pack computes version 1 of the law of packing: which rows of an epoch share a pack, a step and a rank.
//
// It is arithmetic on the lengths of rows, see docs/order.md. Sums are unsigned 64-bit and wrap.
package pack

import (
	"fmt"
	"slices"
	"sort"

	"github.com/kubeflow/datacache/cacheserver/epoch"
)

const (
	// Version is the version of the law.
	Version = 1
	// MostTokens bounds the tokens of a pack.
	MostTokens = 1 << 20
	// MostPacks bounds the packs of a window.
	MostPacks = 1 << 16
	// Quadratic is the usual Law.Quadratic: that of a model of 8 billion parameters.
	Quadratic = 61_035
	// usualPacks is the least number of packs of a window unless a law says otherwise: windows of fewer leave more tokens unused.
	usualPacks = 128
)

// Long selects what happens to a row of more tokens than a pack.
type Long string

// What happens to long rows.
const (
	Refuse   Long = "refuse"   // it is an error
	Split    Long = "split"    // it is cut into pieces
	Truncate Long = "truncate" // its first tokens are used
	Drop     Long = "drop"     // it is in no pack
)

// Law says how rows become packs. It is a plain value; the zero value is invalid.
type Law struct {
	Tokens    uint64 // of a pack
	Packs     uint64 // of a step
	Window    uint64 // number of steps that are packed together; 0: as many as have 128 packs
	Multiple  uint64 // each row takes a multiple of so many tokens
	Quadratic uint64 // the number of tokens for which attention costs as much as all else
	Long      Long
}

// Validate returns an error for the first invalid field, with its name on the wire, its value and the values allowed.
func (l Law) Validate() error {
	if l.Tokens < 1 || l.Tokens > MostTokens {
		return fmt.Errorf("tokens = %d: want 1 <= tokens <= %d", l.Tokens, MostTokens)
	}
	if l.Packs < 1 || l.Packs > MostPacks {
		return fmt.Errorf("packs = %d: want 1 <= packs <= %d", l.Packs, MostPacks)
	}
	if l.Window > MostPacks/l.Packs {
		return fmt.Errorf("window = %d: want at most %d steps of %d packs", l.Window, MostPacks/l.Packs, l.Packs)
	}
	if l.Multiple < 1 || l.Tokens%l.Multiple != 0 {
		return fmt.Errorf("multiple = %d: want a divisor of tokens = %d", l.Multiple, l.Tokens)
	}
	if l.Quadratic > 1<<24 {
		return fmt.Errorf("quadratic = %d: want at most %d", l.Quadratic, 1<<24)
	}
	switch l.Long {
	case Refuse, Split, Truncate, Drop:
		return nil
	}
	return fmt.Errorf("long = %q: want %q, %q, %q or %q", string(l.Long), Refuse, Split, Truncate, Drop)
}

// packs is the number of packs of a window.
func (l Law) packs() int {
	window := l.Window
	if window == 0 {
		window = (usualPacks + l.Packs - 1) / l.Packs
	}
	return int(window * l.Packs)
}

// Room is the number of tokens of a window.
func (l Law) Room() int64 { return int64(l.packs()) * int64(l.Tokens) }

// Longest is how many tokens a row may have; 0 if any number of them is truncated or dropped.
func (l Law) Longest() int64 {
	switch l.Long {
	case Refuse:
		return int64(l.Tokens)
	case Split:
		return l.Room()
	}
	return 0
}

// Size is the number of tokens that a row takes in packs.
func (l Law) Size(length int32) int64 {
	n, most := int64(length), int64(l.Tokens)
	switch {
	case n > most && l.Long == Drop:
		return 0
	case n > most && l.Long == Truncate:
		n = most
	}
	return l.round(n)
}

// round is the least multiple of l.Multiple that is not less than n.
func (l Law) round(n int64) int64 {
	m := int64(l.Multiple)
	return (n + m - 1) / m * m
}

// cost is what a row of so many tokens costs.
func (l Law) cost(size int64) uint64 { return uint64(size) * (l.Quadratic + uint64(size)) }

// Piece is a row of a pack, or a piece of one.
type Piece struct {
	Row    int32 // counted from the first row of the window
	Start  int32 // the first token
	Length int32 // in tokens
}

// Counts says what became of rows: of all, those that have no tokens, and those that are too long.
type Counts struct {
	Rows      int `json:"rows"`
	Empty     int `json:"empty"`
	Dropped   int `json:"dropped"`
	Truncated int `json:"truncated"`
	Split     int `json:"split"`
}

// Window is what is packed together: the packs of some steps. It is immutable.
type Window struct {
	Rows   int      // number of rows that it consumes
	Counts Counts   // of these rows
	Pieces []Piece  // pack by pack, in the order of the packs' steps
	Ends   []int32  // of each pack within Pieces
	Costs  []uint64 // of each pack
	packs  int      // of a step
}

// Steps is the number of steps; 0 if no row has tokens.
func (w *Window) Steps() int { return (len(w.Ends) + w.packs - 1) / w.packs }

// Step returns the numbers of the packs of a step.
func (w *Window) Step(i int) (first, end int) { return i * w.packs, min((i+1)*w.packs, len(w.Ends)) }

// Pack returns the pieces of a pack.
func (w *Window) Pack(i int) []Piece {
	if i == 0 {
		return w.Pieces[:w.Ends[0]]
	}
	return w.Pieces[w.Ends[i-1]:w.Ends[i]]
}

// LongError is a row that is too long.
type LongError struct {
	Row    int // counted from the first row of the window
	Length int32
}

// Error implements error.
func (e *LongError) Error() string { return fmt.Sprintf("a row has %d tokens", e.Length) }

// Pack packs the next rows of an epoch with these lengths, of which the first is at a position. They must have more than Room tokens, or be
// all rows that are left. A row that can't be packed is a *LongError.
func (l Law) Pack(lengths []int32, seed, number, position uint64) (*Window, error) {
	rows, ends := make([]int32, 0, len(lengths)), make([]int64, 0, len(lengths)) // those with tokens, and the sums of their tokens
	total := int64(0)
	for i, length := range lengths {
		if size := l.Size(length); size > 0 {
			total += size
			rows, ends = append(rows, int32(i)), append(ends, total)
		}
	}
	held := sort.Search(len(ends), func(i int) bool { return ends[i] > l.Room() })
	checked := lengths
	if held < len(rows) {
		checked = lengths[:rows[held]+1]
	}
	if err := l.check(checked, held); err != nil {
		return nil, err
	}
	count, f := l.fill(lengths, rows[:held], held == len(rows))
	used := len(lengths)
	if count < len(rows) {
		used = int(rows[count])
	}
	w := &Window{Rows: used, Counts: l.count(lengths[:used]), packs: int(l.Packs)}
	l.order(w, f, seed, number, position)
	return w, nil
}

// check refuses rows that are too long. held is the number of rows that a window may hold.
func (l Law) check(lengths []int32, held int) error {
	if longest := l.Longest(); l.Long == Refuse || l.Long == Split && held == 0 {
		for i, length := range lengths {
			if int64(length) > longest {
				return &LongError{i, length}
			}
		}
	}
	return nil
}

// fill returns how many of the rows fit, and the packs of their pieces. all says that no rows follow.
func (l Law) fill(lengths, rows []int32, all bool) (count int, f *fit) {
	pieces, first := l.pieces(lengths, rows)
	f = newFit(l, pieces)
	if all { // the fewest packs that hold them
		var total int64
		for _, size := range f.sizes {
			total += int64(size)
		}
		least := int((total + int64(l.Tokens) - 1) / int64(l.Tokens))
		for packs := max(1, least); packs <= l.packs(); packs++ {
			if f.fit(len(pieces), packs) {
				return len(rows), f
			}
		}
	}
	least := min(l.packs(), len(rows))
	if l.Long == Split {
		least = 1
	}
	for less := 0; ; less = max(2*less, max(1, len(rows)/1024)) {
		count = max(len(rows)-less, least)
		if f.fit(int(first[count]), l.packs()) {
			return count, f
		}
	}
}

// pieces returns the pieces of rows, and the number of pieces of the first n rows for each n.
func (l Law) pieces(lengths, rows []int32) (pieces []Piece, first []int32) {
	pieces, first = make([]Piece, 0, len(rows)), make([]int32, 1, len(rows)+1)
	for _, row := range rows {
		for start, length := int64(0), int64(lengths[row]); length > start; start += int64(l.Tokens) {
			pieces = append(pieces, Piece{row, int32(start), int32(min(length-start, int64(l.Tokens)))})
			if l.Long != Split {
				break
			}
		}
		first = append(first, int32(len(pieces)))
	}
	return pieces, first
}

// order puts the pieces of a fit into w: their packs in the order of their first pieces, permuted.
func (l Law) order(w *Window, f *fit, seed, number, position uint64) {
	slots, packs := slices.Repeat([]int32{-1}, l.packs()), int32(0) // of each pack: its number in the order of first pieces, and then its slot
	for _, pack := range f.of {
		if slots[pack] < 0 {
			slots[pack] = packs
			packs++
		}
	}
	if packs == 0 {
		return
	}
	order := make([]uint64, packs)
	p := epoch.PackPermutation(uint64(packs), seed, number, position)
	p.Fill(order, 0)
	for pack, i := range slots {
		if i >= 0 {
			slots[pack] = int32(order[i])
		}
	}
	w.Ends, w.Costs, w.Pieces = make([]int32, packs), make([]uint64, packs), make([]Piece, len(f.of))
	for i, pack := range f.of {
		slot := slots[pack]
		w.Ends[slot]++
		w.Costs[slot] += l.cost(int64(f.sizes[i]))
	}
	next, sum := make([]int32, packs), int32(0)
	for slot, n := range w.Ends {
		next[slot] = sum
		sum += n
		w.Ends[slot] = sum
	}
	for i, pack := range f.of {
		slot := slots[pack]
		w.Pieces[next[slot]] = f.pieces[i]
		next[slot]++
	}
}

func (l Law) count(lengths []int32) Counts {
	c, long := Counts{Rows: len(lengths)}, 0
	for _, length := range lengths {
		if length == 0 {
			c.Empty++
		}
		if int64(length) > int64(l.Tokens) {
			long++
		}
	}
	switch l.Long {
	case Drop:
		c.Dropped = long
	case Truncate:
		c.Truncated = long
	case Split:
		c.Split = long
	}
	return c
}
