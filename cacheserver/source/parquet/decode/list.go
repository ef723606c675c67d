// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// lists are the lists decoded into an output so far.
type lists struct {
	offsets []int32 // the first slot of each list of the output, plus the end
	begun   int     // number of lists begun
	open    bool    // the last list has an element, so more may follow
}

// room is the number of lists that are not begun yet.
func (l *lists) room() int { return len(l.offsets) - 1 - l.begun }

// readLists reads n lists. The last one may continue on the next page, so it reads until the next list begins.
func (c *Column) readLists(n int) error {
	extend[int32](&c.starts, n)
	l := lists{offsets: valuesOf[int32](c.starts.bytes())}
	for {
		for c.left == 0 {
			ok, err := c.next()
			switch {
			case err != nil:
				return err
			case !ok && l.room() > 0:
				return errEnds
			case !ok:
				l.offsets[n] = int32(c.slots.slots)
				return nil
			}
		}
		at := c.slots.slots
		valid, err := c.follow(&l)
		if err != nil {
			return err
		}
		if err := c.append(at, c.slots.slots-at, valid); err != nil {
			return err
		}
		if c.left > 0 {
			l.offsets[n] = int32(c.slots.slots)
			return nil
		}
	}
}

// follow processes levels up to the end of the page, or to the list after the last one wanted. It appends the slots of the lists and
// returns how many of them are valid. With a definition level below holder a list is null, at holder it is empty, above it has an
// element, which is valid at the maximum level.
func (c *Column) follow(l *lists) (valid int, err error) {
	for c.left > 0 {
		def, n, err := c.defs.peek()
		if err != nil {
			return 0, err
		}
		n = min(n, c.left)
		before := l.begun
		if def > c.holder {
			n, err = c.elements(l, n)
		} else {
			n, err = c.skipEmptyLists(l, n)
		}
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return valid, nil
		}
		c.rows.add(def >= c.holder, l.begun-before)
		if def > c.holder {
			c.slots.add(def == c.maxDef, n)
		}
		if def == c.maxDef {
			valid += n
		}
		c.defs.skip(n)
		c.left -= n
	}
	return valid, nil
}

// elements processes the repetition levels of n elements, each of which begins or continues a list. It returns how many elements come
// before the list after the last one wanted.
func (c *Column) elements(l *lists, n int) (done int, err error) {
	if c.slots.slots > math.MaxInt32-n {
		return 0, corrupt("the lists of a batch have more than 2^31 elements")
	}
	for done < n {
		if l.open && c.reps.left == 0 {
			done += l.runs(&c.reps, n-done, c.slots.slots+done)
			if done == n {
				break
			}
		}
		if err := c.repetitions(); err != nil {
			return 0, err
		}
		if !l.open && !c.begins() {
			return 0, errNoList
		}
		k, slot := min(c.reps.left, n-done), c.slots.slots+done
		switch {
		case c.reps.packed != nil:
			k = l.packed(c.reps.packed, c.reps.at, k, slot)
		case c.reps.value == 0:
			k = l.singles(k, slot)
		}
		if k == 0 {
			break
		}
		l.open = true
		c.reps.skip(k)
		done += k
	}
	return done, nil
}

// skipEmptyLists processes the repetition levels of n lists without elements, and returns how many of them are wanted.
func (c *Column) skipEmptyLists(l *lists, n int) (done int, err error) {
	n = min(n, l.room())
	for ; done < n; done++ {
		if err := c.repetitions(); err != nil {
			return 0, err
		}
		if !c.begins() {
			return 0, errNoList
		}
		l.singles(1, c.slots.slots)
		c.reps.skip(1)
	}
	if done > 0 {
		l.open = false
	}
	return done, nil
}

// errNoList is the error for a repetition level of 1 without a list to continue.
var errNoList = corrupt("an element of a list that is not there")

// repetitions starts the next run of repetition levels if the current one is finished.
func (c *Column) repetitions() error {
	if err := c.reps.run(); err != nil {
		return err
	}
	if c.reps.packed == nil && c.reps.value > 1 {
		return corrupt("repetition level %d where 1 is the highest", c.reps.value)
	}
	return nil
}

// begins reports whether the next repetition level of the current run begins a list.
func (c *Column) begins() bool {
	if c.reps.packed == nil {
		return c.reps.value == 0
	}
	return c.reps.packed[c.reps.at>>3]>>(c.reps.at&7)&1 == 0
}

// singles begins n lists at consecutive slots, as far as there is room, and returns how many it began.
func (l *lists) singles(n, slot int) int {
	n = min(n, l.room())
	for i := range n {
		l.offsets[l.begun+i] = int32(slot + i)
	}
	l.begun += n
	return n
}

// packed begins a list at each of n slots whose repetition bit, starting at bit at of src, is zero; the first slot has index slot. It
// returns how many slots come before the list after the last one wanted.
func (l *lists) packed(src []byte, at, n, slot int) int {
	offsets, begun := l.offsets[:len(l.offsets)-1], l.begun
	for done := 0; done < n; done += widest {
		k := min(n-done, widest)
		for begins := ^window(src, at+done) & (1<<k - 1); begins != 0; begins &= begins - 1 {
			first := done + bits.TrailingZeros64(begins)
			if begun == len(offsets) {
				l.begun = begun
				return first
			}
			offsets[begun] = int32(slot + first)
			begun++
		}
	}
	l.begun = begun
	return n
}

// runs processes whole runs of repetition levels in one loop, while elements would process them one by one. A list of about ten
// elements has two runs, so runs dominate the cost of short lists (BenchmarkColumn/1-40). It is called between two runs, while a list
// is open. It processes runs that have a header of one byte and either continue a list, or are packed with at most n levels and at
// most as many as there is room for lists; it stops at any other run. It returns the number of levels processed; the first of them
// has index slot.
func (l *lists) runs(h *hybrid, n, slot int) (done int) {
	data, begun := h.data, l.begun
	for len(data) >= 2 {
		head := data[0]
		if head >= 0x80 {
			break
		}
		k := int(head >> 1)
		if head&1 == 0 {
			if data[1] != 1 || done+k > n {
				break
			}
			data, done = data[2:], done+k
			continue
		}
		if len(data) <= k || done+8*k > n || begun+8*k >= len(l.offsets) {
			break
		}
		for _, levels := range data[1 : 1+k] {
			begun += group(l.offsets[begun:], levels, slot+done)
			done += 8
		}
		data = data[1+k:]
	}
	h.data, l.begun = data, begun
	return done
}

// group begins a list at each zero among 8 levels, and returns how many. It always writes two offsets, without a branch, whether or
// not they begin a list; offsets must have room for this. Most groups have one or two zeros, which a CPU can't predict.
func group(offsets []int32, levels uint8, slot int) int {
	begins := uint(^levels)
	n := bits.OnesCount(begins)
	for i := range max(n, 2) {
		offsets[i] = int32(slot + bits.TrailingZeros(begins))
		begins &= begins - 1
	}
	return n
}

// window returns at least widest bits of src, starting at bit at; bits past its end are zero.
func window(src []byte, at int) uint64 {
	if at>>3+8 <= len(src) {
		return binary.LittleEndian.Uint64(src[at>>3:]) >> (at & 7)
	}
	return bitsAt(src, at, widest)
}
