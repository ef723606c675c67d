// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"slices"
)

// index holds every object's size and one LRU list per bucket. Entries are stored in slabs and linked by numbers instead of pointers:
// 48 bytes each, which the garbage collector does not scan, and about 35 in the map. The caller holds Store.mu.
type index struct {
	refs  map[identity]ref
	slabs [][]entry
	free  ref // head of the list of free entries, linked by entry.older
	next  ref // the first entry that was never used

	buckets []*bucketState
	byName  map[string]*bucketState

	total      int64 // limits of all buckets together
	maxObjects int64
	disk       diskLimit
}

// ref is the number of an entry; none stands for no entry.
type ref uint32

const (
	none     ref = 0
	slabSize     = 1 << 14
)

// entry is one object.
type entry struct {
	id           identity
	size         int64  // of the file on disk, rounded up to whole blocks
	stamp        uint32 // of the file; during Scan the Unix time of its last use
	verified     uint32 // Unix time of the last successful verification; 0: none since the process started
	newer, older ref
	bucket       uint16 // bucketState.number
}

// bucketState is one bucket: its quota and the list of its objects, most recently used first.
type bucketState struct {
	number         uint16
	name           string
	quota          int64 // 0: the bucket is not in the limits
	newest, oldest ref
	objects        int64
	used           int64 // bytes of stored objects
	reserved       int64 // bytes reserved for objects being written
	writing        int64 // objects being written

	evicted, evictedBytes, damaged int64
}

// totals are the sums over all buckets.
type totals struct {
	bytes, objects int64 // including objects being written
	quotas         float64
}

func (x *index) sums() (s totals) {
	for _, b := range x.buckets {
		s.bytes += b.used + b.reserved
		s.objects += b.objects + b.writing
		s.quotas += float64(b.quota)
	}
	return s
}

// overShare returns by how much the bucket's use of a resource (held) exceeds the bucket's share of the limit. Shares are proportional to quotas.
func (b *bucketState) overShare(held, limit int64, quotas float64) float64 {
	return float64(held) - float64(limit)*float64(b.quota)/max(quotas, 1)
}

func newIndex() index {
	return index{refs: map[identity]ref{}, next: 1, byName: map[string]*bucketState{}}
}

// bucket returns the state of a bucket, which it creates if needed.
func (x *index) bucket(name string) *bucketState {
	if b, ok := x.byName[name]; ok {
		return b
	}
	b := &bucketState{number: uint16(len(x.buckets)), name: name}
	x.buckets = append(x.buckets, b)
	x.byName[name] = b
	return b
}

func (x *index) at(r ref) *entry { return &x.slabs[r/slabSize][r%slabSize] }

// find returns an object's entry, nil if there is none. It is valid until the next call of add or remove.
func (x *index) find(id identity) *entry {
	r, ok := x.refs[id]
	if !ok {
		return nil
	}
	return x.at(r)
}

// touch moves an object to the front of its bucket's list.
func (x *index) touch(id identity) {
	r := x.refs[id]
	x.unlink(r)
	x.link(r)
}

// add inserts an object at the front of its bucket's list, replacing one with the same identity.
func (x *index) add(e entry) {
	x.remove(e.id)
	r := x.allocate()
	*x.at(r) = e
	x.refs[e.id] = r
	x.link(r)
	b := x.buckets[e.bucket]
	b.objects++
	b.used += e.size
}

// remove removes an object and returns its entry.
func (x *index) remove(id identity) (entry, bool) {
	r, ok := x.refs[id]
	if !ok {
		return entry{}, false
	}
	x.unlink(r)
	delete(x.refs, id)
	e := *x.at(r)
	*x.at(r) = entry{older: x.free}
	x.free = r
	b := x.buckets[e.bucket]
	b.objects--
	b.used -= e.size
	return e, true
}

func (x *index) allocate() ref {
	if r := x.free; r != none {
		x.free = x.at(r).older
		return r
	}
	r := x.next
	x.next++
	if int(r/slabSize) == len(x.slabs) {
		x.slabs = append(x.slabs, make([]entry, slabSize))
	}
	return r
}

func (x *index) link(r ref) {
	e := x.at(r)
	b := x.buckets[e.bucket]
	e.newer, e.older = none, b.newest
	if b.newest != none {
		x.at(b.newest).newer = r
	} else {
		b.oldest = r
	}
	b.newest = r
}

func (x *index) unlink(r ref) {
	e := x.at(r)
	b := x.buckets[e.bucket]
	if e.newer != none {
		x.at(e.newer).older = e.older
	} else {
		b.newest = e.older
	}
	if e.older != none {
		x.at(e.older).newer = e.newer
	} else {
		b.oldest = e.newer
	}
}

// sortByUse orders each bucket's list by the times of last use that Scan stores in entry.stamp.
func (x *index) sortByUse() {
	for _, b := range x.buckets {
		refs := make([]ref, 0, b.objects)
		for r := b.oldest; r != none; r = x.at(r).newer {
			refs = append(refs, r)
		}
		slices.SortStableFunc(refs, func(a, b ref) int { return cmp.Compare(x.at(a).stamp, x.at(b).stamp) })
		b.newest, b.oldest = none, none
		for _, r := range refs {
			x.link(r)
		}
	}
}

func (x *index) setLimits(limits Limits) {
	x.total, x.maxObjects = limits.Total, cmp.Or(limits.Objects, DefaultMaxObjects)
	for bucket := range limits.Quotas {
		x.bucket(bucket)
	}
	for _, b := range x.buckets {
		b.quota = limits.Quotas[b.name]
	}
}

// evictFrom returns the bucket to evict from before more bytes and objects fit into b, nil if they fit already. If b is at its
// quota, its own objects are evicted; if a limit on all buckets is reached, those of the bucket furthest above its share. b may be
// nil.
func (x *index) evictFrom(b *bucketState, bytes, objects int64) *bucketState {
	if b != nil && b.used+b.reserved+bytes > b.quota {
		return b
	}
	held := x.sums()
	maxBytes, maxObjects := x.total, x.maxObjects
	if x.disk.measured {
		maxBytes, maxObjects = min(maxBytes, x.disk.bytes), min(maxObjects, x.disk.objects)
	}
	var over func(b *bucketState) float64
	switch {
	case held.bytes+bytes > maxBytes:
		over = func(b *bucketState) float64 { return b.overShare(b.used+b.reserved, maxBytes, held.quotas) }
	case held.objects+objects > maxObjects:
		over = func(b *bucketState) float64 { return b.overShare(b.objects+b.writing, maxObjects, held.quotas) }
	default:
		return nil
	}
	var from *bucketState
	for _, each := range x.buckets {
		if each.oldest == none {
			continue // nothing to evict
		}
		if from == nil || over(each) > over(from) {
			from = each
		}
	}
	if from == nil {
		return b
	}
	return from
}

// oldest returns the least recently used object of l; false if l is nil or empty.
func (x *index) oldest(l *bucketState) (identity, bool) {
	if l == nil || l.oldest == none {
		return identity{}, false
	}
	return x.at(l.oldest).id, true
}
