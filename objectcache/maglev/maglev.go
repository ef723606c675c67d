// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maglev implements Maglev hashing with the same table as Envoy's MAGLEV load balancer.
package maglev

import (
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// DefaultSize is Envoy's default number of slots, a prime.
const DefaultSize = 65537

// Table maps hashes to hosts. It is immutable and may be shared; the zero value has no hosts.
type Table struct{ slots []int32 }

// New returns a table of size slots, a prime, for hosts of equal weight. It depends on the set of names, not on their order.
// Names must differ.
//
// The algorithm is section 3.4 of "Maglev: A Fast and Reliable Software Network Load Balancer" (NSDI '16); the two hashes
// of a name and the order in which hosts choose slots are those of Envoy (source/extensions/load_balancing_policies/maglev).
func New(hosts []string, size uint64) Table {
	if len(hosts) == 0 {
		return Table{}
	}
	turns := make([]permutation, len(hosts))
	for i, host := range hosts {
		turns[i] = newPermutation(host, int32(i), size)
	}
	slices.SortFunc(turns, func(a, b permutation) int { return strings.Compare(hosts[a.host], hosts[b.host]) })
	slots := make([]int32, size)
	for i := range slots {
		slots[i] = empty
	}
	for filled := uint64(0); filled < size; {
		for i := range turns {
			if filled == size {
				break
			}
			slots[turns[i].free(slots)] = turns[i].host
			filled++
		}
	}
	return Table{slots: slots}
}

// Host returns the index, in New's hosts, of the host that owns the hash; -1 if there are no hosts.
func (t Table) Host(hash uint64) int {
	if len(t.slots) == 0 {
		return -1
	}
	return int(t.slots[hash%uint64(len(t.slots))])
}

// empty marks a slot without a host.
const empty = -1

// permutation yields the order in which one host chooses slots.
type permutation struct {
	next, skip uint64
	host       int32
}

func newPermutation(name string, host int32, size uint64) permutation {
	second := xxhash.NewWithSeed(1)
	_, _ = second.WriteString(name) // writing to a hash never fails
	return permutation{next: xxhash.Sum64String(name) % size, skip: second.Sum64()%(size-1) + 1, host: host}
}

// free returns the host's next slot that is still empty, and advances past it.
func (p *permutation) free(slots []int32) uint64 {
	for {
		slot := p.next
		p.next = (p.next + p.skip) % uint64(len(slots))
		if slots[slot] == empty {
			return slot
		}
	}
}
