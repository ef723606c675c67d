// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maglev spreads keys over hosts by Maglev hashing, slot for slot as Envoy's MAGLEV load balancer does.
package maglev

import (
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// DefaultSize is the number of slots that Envoy takes where nothing else is set. It must be a prime.
const DefaultSize = 65537

// Table says which host has which hash. It does not change after New and may be shared; the zero value has no host.
type Table struct{ slots []int32 }

// New fills a table of size slots, a prime, for hosts of equal weight. The table depends on the set of names alone, not on
// their order, so that all who know the same hosts agree. Names must differ.
//
// The algorithm is section 3.4 of "Maglev: A Fast and Reliable Software Network Load Balancer" (NSDI '16); the two hashes
// of a name and the order in which hosts take turns are those of Envoy (source/extensions/load_balancing_policies/maglev).
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

// Host is the index, in New's hosts, of the host that has the hash; -1 if there are no hosts.
func (t Table) Host(hash uint64) int {
	if len(t.slots) == 0 {
		return -1
	}
	return int(t.slots[hash%uint64(len(t.slots))])
}

// empty marks a slot that no host has taken yet.
const empty = -1

// permutation is the order in which one host asks for slots.
type permutation struct {
	next, skip uint64
	host       int32
}

func newPermutation(name string, host int32, size uint64) permutation {
	second := xxhash.NewWithSeed(1)
	_, _ = second.WriteString(name) // a hash takes everything
	return permutation{next: xxhash.Sum64String(name) % size, skip: second.Sum64()%(size-1) + 1, host: host}
}

// free moves past the host's next slot that nobody has, and returns it.
func (p *permutation) free(slots []int32) uint64 {
	for {
		slot := p.next
		p.next = (p.next + p.skip) % uint64(len(slots))
		if slots[slot] == empty {
			return slot
		}
	}
}
