// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"container/heap"
	"math"
	"sync"
)

// demand is the order in which splits are loaded: first those that streams need, by the position at which they do, then the others in their
// order. It is safe for concurrent use.
type demand struct {
	mu      sync.Mutex
	needed  []uint64 // by split, the earliest position at which a stream needs it; math.MaxUint64: none has asked
	started []bool   // by split
	next    int      // splits before it have started
	queue   needs    // a split that became needed earlier is in it more than once
}

func newDemand(splits int) *demand {
	d := &demand{needed: make([]uint64, splits), started: make([]bool, splits)}
	for i := range d.needed {
		d.needed[i] = math.MaxUint64
	}
	return d
}

// want says that a stream needs a split at a position of its sequence.
func (d *demand) want(split int, position uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.started[split] && position < d.needed[split] {
		d.needed[split] = position
		heap.Push(&d.queue, request{position, split})
	}
}

// start returns the split to load next; false after the last one.
func (d *demand) start() (split int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.queue) > 0 {
		if split := heap.Pop(&d.queue).(request).split; !d.started[split] {
			d.started[split] = true
			return split, true
		}
	}
	for ; d.next < len(d.started); d.next++ {
		if !d.started[d.next] {
			d.started[d.next] = true
			return d.next, true
		}
	}
	return 0, false
}

// request is a split and where it is needed.
type request struct {
	position uint64
	split    int
}

// needs is a heap.Interface, with the split that is needed first at the top.
type needs []request

func (n needs) Len() int           { return len(n) }
func (n needs) Less(i, j int) bool { return n[i].position < n[j].position }
func (n needs) Swap(i, j int)      { n[i], n[j] = n[j], n[i] }
func (n *needs) Push(x any)        { *n = append(*n, x.(request)) }
func (n *needs) Pop() any {
	last := len(*n) - 1
	x := (*n)[last]
	*n = (*n)[:last]
	return x
}
