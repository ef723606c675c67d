// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package router maps keys to the object caches that own them.
package router

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/kubeflow/datacache/objectcache/maglev"
)

// Member is one object cache.
type Member struct {
	// Name is the node's name; it stays the same when a pod restarts, so that a restart moves no keys.
	Name string
	// Address is where it listens, host:port.
	Address string
	// Zone is the node's zone; "" if it has none. It does not affect which member owns a key.
	Zone string
}

// Parse parses a file of members: on each line NAME HOST:PORT or NAME HOST:PORT ZONE. Empty lines and those that begin with # are
// skipped.
func Parse(text []byte) ([]Member, error) {
	var members []Member
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 || len(fields) > 3 {
			return nil, fmt.Errorf("line %d: %q, want NAME HOST:PORT or NAME HOST:PORT ZONE", number, strings.TrimSpace(line))
		}
		if _, _, err := net.SplitHostPort(fields[1]); err != nil {
			return nil, fmt.Errorf("line %d: want HOST:PORT after the name: %w", number, err)
		}
		m := Member{Name: fields[0], Address: fields[1]}
		if len(fields) == 3 {
			m.Zone = fields[2]
		}
		if Contains(members, m.Name) {
			return nil, fmt.Errorf("line %d: the name %q is on another line too, want one line a member", number, m.Name)
		}
		members = append(members, m)
	}
	return members, nil
}

// Router distributes keys over the members. Create it with New; it may be shared.
type Router struct {
	self  string
	view  atomic.Pointer[view]
	hosts atomic.Pointer[[]string]

	mu   sync.Mutex // held by Set
	last *view      // the last view before the current one that had self as a member
	// since has, for each slot, the Unix time in ns when self took it over from another member; 0: never.
	since [maglev.DefaultSize]atomic.Int64
}

// view is an immutable set of members.
type view struct {
	members []Member
	table   maglev.Table
}

// New returns the Router of the member called self. It has no members yet: self owns every key.
func New(self string) *Router {
	r := &Router{self: self}
	r.view.Store(&view{})
	return r
}

// Distinct returns the members sorted by name. Of several with the same name it keeps the one with the least address: every object
// cache must choose the same, in whatever order it learned of them.
func Distinct(members []Member) []Member {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Address, b.Address))
	})
	return slices.CompactFunc(members, func(a, b Member) bool { return a.Name == b.Name })
}

// Set replaces the members by those of Distinct.
func (r *Router) Set(members []Member) {
	members = Distinct(members)
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Equal(members, r.view.Load().members) {
		return
	}
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Name
	}
	v := &view{members: members, table: maglev.New(names, maglev.DefaultSize)}
	if Contains(members, r.self) {
		r.noteTakeovers(v)
		r.last = v
	}
	r.view.Store(v)
}

// noteTakeovers records the current time for the slots that self owns in a view and did not own in the last one in which it was a
// member.
func (r *Router) noteTakeovers(v *view) {
	if r.last == nil {
		return
	}
	now := time.Now().UnixNano()
	for slot := range r.since {
		if v.has(uint64(slot), r.self) && !r.last.has(uint64(slot), r.self) {
			r.since[slot].Store(now)
		}
	}
}

func (v *view) has(hash uint64, name string) bool {
	i := v.table.Host(hash)
	return i >= 0 && v.members[i].Name == name
}

// OwnedSince is the time at which this member took a key over from another; zero if it always owned it.
func (r *Router) OwnedSince(bucket, key string) time.Time {
	since := r.since[hash(bucket, key)%maglev.DefaultSize].Load()
	if since == 0 {
		return time.Time{}
	}
	return time.Unix(0, since)
}

// Contains reports whether members has one with the name.
func Contains(members []Member, name string) bool {
	return slices.ContainsFunc(members, func(m Member) bool { return m.Name == name })
}

// Self is this member's name.
func (r *Router) Self() string { return r.self }

// Present reports whether this node is among the members.
func (r *Router) Present() bool { return Contains(r.view.Load().members, r.self) }

// Others returns all members except this one.
func (r *Router) Others() []Member {
	return slices.DeleteFunc(slices.Clone(r.view.Load().members), func(m Member) bool { return m.Name == r.self })
}

// Named returns the member with a name.
func (r *Router) Named(name string) (Member, bool) {
	for _, m := range r.view.Load().members {
		if m.Name == name {
			return m, true
		}
	}
	return Member{}, false
}

// Rotation returns all members. The first one depends on the key, so that objects of few parts use all members alike.
func (r *Router) Rotation(bucket, key string) []Member {
	members := r.view.Load().members
	if len(members) == 0 {
		return nil
	}
	first := int(hash(bucket, key) % uint64(len(members)))
	return slices.Concat(members[first:], members[:first])
}

// SetHosts sets the IP addresses of all object caches, including those that are not ready.
func (r *Router) SetHosts(hosts []string) { r.hosts.Store(&hosts) }

// HasHost reports whether an IP address is among those of SetHosts.
func (r *Router) HasHost(host string) bool {
	hosts := r.hosts.Load()
	return hosts != nil && slices.Contains(*hosts, host)
}

func hash(bucket, key string) uint64 { return xxhash.Sum64String(bucket + "/" + key) }

// Members is the number of members.
func (r *Router) Members() int { return len(r.view.Load().members) }

// Elsewhere returns the member that owns a key; ok is false if it is this one or there are no members.
func (r *Router) Elsewhere(bucket, key string) (Member, bool) {
	v := r.view.Load()
	i := v.table.Host(hash(bucket, key))
	if i < 0 || v.members[i].Name == r.self {
		return Member{}, false
	}
	return v.members[i], true
}
