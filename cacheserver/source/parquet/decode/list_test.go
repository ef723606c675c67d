// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// pageOf returns a column in the middle of a page: a list is null at definition level 0, empty at 1, and has elements at 2.
func pageOf(reps, defs []byte, left int) *Column {
	c := &Column{list: true, holder: 1, maxDef: 2, left: left, reps: newHybrid(reps, 1)}
	c.defs.begin(defs, c.maxDef)
	c.rows.begin(memory.DefaultAllocator, left)
	c.slots.begin(memory.DefaultAllocator, left)
	return c
}

// run encodes the levels of a run of n equal values, n below 64.
func run(n, value byte) []byte { return []byte{n << 1, value} }

func TestFollow(t *testing.T) {
	bits := func(b byte) []byte { return []byte{1<<1 | 1, b} } // a group of 8 packed repetition levels
	for _, tc := range []struct {
		name       string
		reps, defs []byte
		left, room int
		want       []int32 // the first slots of the lists begun
		rest       int     // number of levels left unprocessed
		fails      error
	}{
		{name: "packed", reps: bits(0b1101_0110), defs: run(8, 2), left: 8, room: 9, want: []int32{0, 3, 5}},
		{name: "packed, a list too many", reps: bits(0b1101_0110), defs: run(8, 2), left: 8, room: 2, want: []int32{0, 3}, rest: 3},
		{name: "runs", reps: slices.Concat(run(1, 0), run(5, 1), run(2, 0)), defs: run(8, 2), left: 8, room: 9, want: []int32{0, 6, 7}},
		{name: "runs, a list too many", reps: slices.Concat(run(1, 0), run(5, 1), run(2, 0)), defs: run(8, 2), left: 8, room: 2, want: []int32{0, 6}, rest: 1},
		{name: "null and empty lists between", reps: bits(0b1000_0010), defs: slices.Concat(run(2, 2), run(2, 0), run(2, 1), run(2, 2)), left: 8, room: 9, want: []int32{0, 2, 2, 2, 2, 2}},
		{name: "hollow, a list too many", reps: run(3, 0), defs: run(3, 0), left: 3, room: 2, want: []int32{0, 0}, rest: 1},
		{name: "goes on with no list, packed", reps: bits(0b0000_0001), defs: run(8, 2), left: 8, room: 9, fails: errNoList},
		{name: "goes on with no list, run", reps: run(8, 1), defs: run(8, 2), left: 8, room: 9, fails: errNoList},
		{name: "goes on with an empty list", reps: slices.Concat(run(1, 0), run(1, 1)), defs: slices.Concat(run(1, 1), run(1, 2)), left: 2, room: 9, fails: errNoList},
		{name: "goes on with a null list", reps: bits(0b0000_0100), defs: slices.Concat(run(2, 0), run(6, 2)), left: 8, room: 9, fails: errNoList},
		{name: "empty, but goes on", reps: bits(0b0000_0010), defs: run(8, 1), left: 8, room: 9, fails: errNoList},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, l := pageOf(tc.reps, tc.defs, tc.left), lists{offsets: make([]int32, tc.room+1)}
			_, err := c.follow(&l)
			if !errors.Is(err, tc.fails) {
				t.Fatalf("error %v, want %v", err, tc.fails)
			}
			if err != nil {
				return
			}
			if got := l.offsets[:l.begun]; !slices.Equal(got, tc.want) {
				t.Errorf("lists begin at %d, want %d", got, tc.want)
			}
			if c.left != tc.rest {
				t.Errorf("%d levels are left, want %d", c.left, tc.rest)
			}
		})
	}
}

func TestFollowRefusesLevelsTooHigh(t *testing.T) {
	c, l := pageOf(run(8, 2), run(8, 2), 8), lists{offsets: make([]int32, 9)}
	if _, err := c.follow(&l); err == nil {
		t.Error("repetition level 2 was taken")
	}
}

// TestPacked checks for all offsets and lengths that the lists are the same as when bits are processed one by one.
func TestPacked(t *testing.T) {
	r := seedtest.New(t)
	for range 2000 {
		src := make([]byte, 1+r.IntN(40))
		for i := range src {
			src[i] = byte(r.Uint32() | r.Uint32()) // lists with four elements on average
		}
		at := r.IntN(8)
		n := r.IntN(8*len(src) - at + 1)
		room := r.IntN(n + 2)
		var want []int32
		done := 0
		for ; done < n; done++ {
			if src[(at+done)>>3]>>((at+done)&7)&1 == 1 {
				continue
			}
			if len(want) == room {
				break
			}
			want = append(want, int32(100+done))
		}
		l := lists{offsets: make([]int32, room+1)}
		if got := l.packed(src, at, n, 100); got != done || !slices.Equal(l.offsets[:l.begun], want) {
			t.Fatalf("%d levels from bit %d of %08b on, room for %d: %d followed and lists at %d, want %d and %d", n, at, src, room, got, l.offsets[:l.begun], done, want)
		}
	}
}

// TestRuns checks for runs of all kinds and lengths that the lists are the same as when levels are processed one by one.
func TestRuns(t *testing.T) {
	r := seedtest.New(t)
	for range 2000 {
		encoded, levels := []byte{1 << 1, 0}, []byte{0}
		repeat := func(n int, value byte) {
			encoded = append(binary.AppendUvarint(encoded, uint64(n)<<1), value)
			levels = append(levels, bytes.Repeat([]byte{value}, n)...)
		}
		for range r.IntN(60) {
			switch r.IntN(8) {
			case 0:
				repeat(r.IntN(20), 0)
			case 1:
				repeat(r.IntN(300), 1) // some have a header of two bytes
			case 2, 3, 4:
				repeat(8+r.IntN(30), 1)
			default:
				groups := r.IntN(4)
				encoded = append(encoded, byte(groups)<<1|1)
				for range groups {
					b := byte(r.Uint32() | r.Uint32())
					encoded = append(encoded, b)
					for bit := range 8 {
						levels = append(levels, b>>bit&1)
					}
				}
			}
		}
		n := 1 + r.IntN(len(levels)) // the last groups may be padding
		room := 1 + r.IntN(n+1)
		var want []int32
		done := 0
		for ; done < n && (levels[done] == 1 || len(want) < room); done++ {
			if levels[done] == 0 {
				want = append(want, int32(done))
			}
		}
		c, l := pageOf(encoded, slices.Concat(binary.AppendUvarint(nil, uint64(n)<<1), []byte{2}), n), lists{offsets: make([]int32, room+1)}
		if _, err := c.follow(&l); err != nil {
			t.Fatal(err)
		}
		if got := l.offsets[:l.begun]; !slices.Equal(got, want) || c.left != n-done {
			t.Fatalf("%d levels of %x, room for %d: %d left and lists at %d, want %d and %d", n, encoded, room, c.left, got, n-done, want)
		}
	}
}
