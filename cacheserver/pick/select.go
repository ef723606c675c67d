// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pick

import "math/bits"

// Run is a range of consecutive rows. It is identical to rows.Run and epoch.Run.
type Run = struct {
	First uint64 // row
	Rows  uint64 // at least 1
}

// lanes is how many selections are made at the same time. Their steps don't depend on each other, so the CPU overlaps their cache misses.
const lanes = 16

// Select replaces every k of ks, each below Len, by the k-th selected row.
func (x *Index) Select(ks []uint64) {
	if x.list != nil {
		for i, k := range ks {
			ks[i] = uint64(x.list[k])
		}
		return
	}
	for len(ks) > 0 {
		n := min(lanes, len(ks))
		x.selectLanes(ks[:n])
		ks = ks[n:]
	}
}

// selectLanes is Select for at most lanes numbers, in passes over all of them: it finds the stretch of blocks of each, then the block,
// then loads the block, then finds the bit.
func (x *Index) selectLanes(ks []uint64) {
	var lo, length [lanes]uint32
	for i, k := range ks {
		samples := x.samples[k/sampled:][:2]
		lo[i], length[i] = samples[0], samples[1]-samples[0]+1
	}
	for i, k := range ks { // the last block with before <= k
		first := lo[i]
		for n := length[i]; n > 1; n -= n / 2 {
			half := n / 2
			past := uint32((k-uint64(x.before[first+half]))>>63) - 1 // all ones if before <= k, without a branch that is mispredicted
			first += half & past
		}
		lo[i] = first
	}
	var words [lanes]uint64
	for i := range ks {
		words[i] = x.words[lo[i]*blockWords]
	}
	for i, k := range ks {
		b := lo[i]
		ks[i] = uint64(b)*blockBits + selectInBlock(words[i], (*[blockWords]uint64)(x.words[b*blockWords:]), k-uint64(x.before[b]))
	}
}

// selectInBlock is the number of the k-th set bit of a block that has more than k; first is its first word. It halves the block three
// times, without branches that are mispredicted.
func selectInBlock(first uint64, words *[blockWords]uint64, k uint64) uint64 {
	half := ones(first) + ones(words[1]) + ones(words[2]) + ones(words[3])
	past := (k-half)>>63 - 1 // all ones if the bit is in the second half
	k -= half & past
	word := 4 & past
	half = ones(words[word&7]) + ones(words[(word+1)&7])
	past = (k-half)>>63 - 1
	k -= half & past
	word += 2 & past
	half = ones(words[word&7])
	past = (k-half)>>63 - 1
	word += 1 & past
	return word*64 + selectInWord(words[word&7], k-half&past)
}

func ones(w uint64) uint64 { return uint64(bits.OnesCount64(w)) }

const (
	everyByte = 0x0101010101010101
	highBits  = 0x8080808080808080
)

// selectInWord is the number of the k-th set bit of a word that has more than k: it compares k with the number of bits up to each byte
// (S. Vigna, Broadword implementation of rank/select queries, 2008), and then looks within one byte.
func selectInWord(w, k uint64) uint64 {
	s := w - w>>1&0x5555555555555555
	s = s&0x3333333333333333 + s>>2&0x3333333333333333
	s = (s + s>>4) & 0x0F0F0F0F0F0F0F0F * everyByte // byte i: set bits in bytes 0 to i
	// The high bit of byte i of the difference is set if s's byte <= k.
	at := uint64(bits.OnesCount64(((k*everyByte|highBits)-s)&highBits)) * 8
	k -= s << 8 >> at & 0xFF
	return at + uint64(inByte[k<<8|w>>at&0xFF])
}

// inByte[k<<8|b] is the number of the k-th set bit of byte b.
var inByte = func() (table [8 * 256]uint8) {
	for b := range 256 {
		for k, rest := 0, b; rest != 0; k, rest = k+1, rest&(rest-1) {
			table[k<<8|b] = uint8(bits.TrailingZeros8(uint8(rest)))
		}
	}
	return table
}()

// Runs stores the selected rows from number first on, as runs of consecutive rows in ascending order: at most n rows and at most
// len(dst) runs. It returns the number of runs, and of rows in them. first+n must not exceed Len.
func (x *Index) Runs(dst []Run, first, n uint64) (runs int, rows uint64) {
	if n == 0 || len(dst) == 0 {
		return 0, 0
	}
	if x.list != nil {
		return listRuns(dst, x.list[first:first+n])
	}
	at := [1]uint64{first}
	x.Select(at[:])
	row := at[0]
	for rows < n && runs < len(dst) {
		row = x.next(row)
		length := min(x.ones(row), n-rows)
		dst[runs] = Run{First: row, Rows: length}
		runs, rows, row = runs+1, rows+length, row+length
	}
	return runs, rows
}

func listRuns(dst []Run, list []uint32) (runs int, rows uint64) {
	for _, row := range list {
		if runs > 0 && dst[runs-1].First+dst[runs-1].Rows == uint64(row) {
			dst[runs-1].Rows++
			rows++
			continue
		}
		if runs == len(dst) {
			break
		}
		dst[runs] = Run{First: uint64(row), Rows: 1}
		runs, rows = runs+1, rows+1
	}
	return runs, rows
}

// next is the first selected row from row on; there must be one.
func (x *Index) next(row uint64) uint64 {
	i := row / 64
	w := x.words[i] >> (row % 64) << (row % 64)
	for w == 0 {
		i++
		w = x.words[i]
	}
	return i*64 + uint64(bits.TrailingZeros64(w))
}

// ones is the number of consecutive selected rows from row on, which is selected.
func (x *Index) ones(row uint64) uint64 {
	i := row / 64
	w := ^x.words[i] >> (row % 64) << (row % 64)
	for w == 0 && int(i) < len(x.words)-1 {
		i++
		w = ^x.words[i]
	}
	if w == 0 {
		return (i+1)*64 - row
	}
	return i*64 + uint64(bits.TrailingZeros64(w)) - row
}
