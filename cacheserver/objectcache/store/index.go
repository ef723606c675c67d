// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

// index knows every object's size and place in its bucket's order of use. Objects are entries in slabs, linked by numbers
// in place of pointers: 48 bytes each, which the garbage collector does not look into, and about 35 in the map.
// The caller holds Store.mu.
type index struct {
	refs  map[identity]ref
	slabs [][]entry
	free  ref // a list through entry.older
	next  ref // first entry that was never used

	lanes  []*lane
	byName map[string]*lane
}

// ref is the place of an entry; none is no entry.
type ref uint32

const (
	none     ref = 0
	slabSize     = 1 << 14
)

// entry is one object.
type entry struct {
	id           identity
	size         int64 // of the file
	stamp        uint32
	verified     uint32 // Unix time of the last good checksum; 0 since the index was built
	newer, older ref
	lane         uint16
}

// lane is one bucket: its objects, by use, and its limit.
type lane struct {
	number         uint16
	bucket         string
	quota          int64 // 0: not in the limits (any more)
	newest, oldest ref
	objects        int64
	used           int64 // by objects
	reserved       int64 // by objects being written

	evicted, evictedBytes, damaged int64
}

// over is how far the lane is above its share of a total limit; shares are as the quotas.
func (l *lane) over(total int64, quotas float64) float64 {
	return float64(l.used+l.reserved) - float64(total)*float64(l.quota)/max(quotas, 1)
}

func newIndex() index {
	return index{refs: map[identity]ref{}, next: 1, byName: map[string]*lane{}}
}

// lane gives a bucket's lane, made when it is first asked for.
func (x *index) lane(bucket string) *lane {
	if l, ok := x.byName[bucket]; ok {
		return l
	}
	l := &lane{number: uint16(len(x.lanes)), bucket: bucket}
	x.lanes = append(x.lanes, l)
	x.byName[bucket] = l
	return l
}

func (x *index) at(r ref) *entry { return &x.slabs[r/slabSize][r%slabSize] }

// find returns an object's entry, nil if there is none. It is good until the next add or remove.
func (x *index) find(id identity) *entry {
	r, ok := x.refs[id]
	if !ok {
		return nil
	}
	return x.at(r)
}

// touch makes an object the newest of its lane.
func (x *index) touch(id identity) {
	r := x.refs[id]
	x.unlink(r)
	x.link(r)
}

// add puts an object in, as the newest of its lane; one of the same identity goes.
func (x *index) add(e entry) {
	x.remove(e.id)
	r := x.allocate()
	*x.at(r) = e
	x.refs[e.id] = r
	x.link(r)
	l := x.lanes[e.lane]
	l.objects++
	l.used += e.size
}

// remove takes an object out and returns it as it was.
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
	l := x.lanes[e.lane]
	l.objects--
	l.used -= e.size
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
	l := x.lanes[e.lane]
	e.newer, e.older = none, l.newest
	if l.newest != none {
		x.at(l.newest).newer = r
	} else {
		l.oldest = r
	}
	l.newest = r
}

func (x *index) unlink(r ref) {
	e := x.at(r)
	l := x.lanes[e.lane]
	if e.newer != none {
		x.at(e.newer).older = e.older
	} else {
		l.newest = e.older
	}
	if e.older != none {
		x.at(e.older).newer = e.newer
	} else {
		l.oldest = e.newer
	}
}
