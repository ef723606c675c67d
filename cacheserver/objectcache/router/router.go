// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package router maps keys to the object caches that own them.
package router

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/kubeflow/datacache/cacheserver/objectcache/maglev"
)

// Member is one object cache.
type Member struct {
	// Name is the node's name, which a restarted pod keeps: a restart moves no key.
	Name string
	// Address is where it listens, host:port.
	Address string
}

// Router distributes keys over the members. Create it with New; it may be shared.
type Router struct {
	self string
	view atomic.Pointer[view]
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

// Set replaces the members. Of several with the same name it keeps the first.
func (r *Router) Set(members []Member) {
	members = slices.Clone(members)
	slices.SortStableFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	members = slices.CompactFunc(members, func(a, b Member) bool { return a.Name == b.Name })
	if slices.Equal(members, r.view.Load().members) {
		return
	}
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Name
	}
	r.view.Store(&view{members: members, table: maglev.New(names, maglev.DefaultSize)})
}

// Members is the number of members.
func (r *Router) Members() int { return len(r.view.Load().members) }

// Elsewhere returns the member that owns a key, false if it is this one or there are none.
func (r *Router) Elsewhere(bucket, key string) (Member, bool) {
	v := r.view.Load()
	i := v.table.Host(xxhash.Sum64String(bucket + "/" + key))
	if i < 0 || v.members[i].Name == r.self {
		return Member{}, false
	}
	return v.members[i], true
}
