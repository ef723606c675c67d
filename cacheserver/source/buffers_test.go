// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"maps"
	"testing"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

func TestBuffers(t *testing.T) {
	random := seedtest.New(t)
	r := NewMappedBuffers(1 << 20)
	defer r.Close()
	var live [][]byte
	for range 2000 {
		size := random.IntN(1 << (1 + random.IntN(18)))
		switch k := random.IntN(3); {
		case k == 0 && len(live) > 0:
			i := random.IntN(len(live))
			r.Free(live[i])
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		case k == 1 && len(live) > 0:
			i := random.IntN(len(live))
			old := append([]byte(nil), live[i]...)
			b := r.Reallocate(size, live[i])
			n := min(len(old), size)
			if len(b) != size || string(b[:n]) != string(old[:n]) || !zero(b[n:]) {
				t.Fatalf("reallocated %d bytes to %d: contents are wrong", len(old), size)
			}
			fill(b)
			live[i] = b
		default:
			b := r.Allocate(size)
			if len(b) != size || !zero(b) {
				t.Fatalf("allocated %d bytes: got %d, zero %v", size, len(b), zero(b))
			}
			fill(b)
			live = append(live, b)
		}
	}
}

// TestMemoryOfTheLastRowGroup decodes row groups that need more than the limit: the second and later ones map nothing.
func TestMemoryOfTheLastRowGroup(t *testing.T) {
	const page = 3 << 20
	r := NewMappedBuffers(1 << 20)
	defer r.Close()
	var first map[*byte][]byte
	for range 3 {
		dictionary := r.Allocate(page)
		for range 4 {
			r.Free(r.Allocate(page / 2)) // a batch
		}
		r.Free(dictionary)
		if first == nil {
			first = maps.Clone(r.mapped)
		}
		if len(first) != 2 || !maps.EqualFunc(first, r.mapped, func(a, b []byte) bool { return len(a) == len(b) }) {
			t.Fatalf("%d mappings of the first row group, then %d", len(first), len(r.mapped))
		}
	}

	small := r.Allocate(1 << 20) // fits neither of the free ones
	if r.used+r.unused > r.peak {
		t.Errorf("%d bytes are mapped, at most %d were in use at once", r.used+r.unused, r.peak)
	}
	r.Free(small)
	r.SetLimit(page / 4)
	if r.unused > page/4 {
		t.Errorf("%d unused bytes stay mapped with a limit of %d", r.unused, page/4)
	}
	r.Drop()
	if r.unused != 0 || r.used != 0 || len(r.mapped) != 0 {
		t.Errorf("after Drop %d bytes are unused, %d used", r.unused, r.used)
	}
}

func zero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

func fill(b []byte) {
	for i := range b {
		b[i] = byte(i) | 1
	}
}
