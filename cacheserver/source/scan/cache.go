// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"container/list"
	"context"
	"sync"
)

// Lazy is a value that is computed at its first use. Concurrent callers wait for one of them to compute it; if that fails, the next
// one tries. Make it with NewLazy.
type Lazy[T any] struct {
	gate chan struct{} // a mutex whose Lock ends with a context: it has a value while it is unlocked; protects the other fields
	done bool
	v    T
}

// NewLazy returns a value that is not computed yet.
func NewLazy[T any]() *Lazy[T] {
	l := &Lazy[T]{gate: make(chan struct{}, 1)}
	l.gate <- struct{}{}
	return l
}

// Get returns the value; load computes it.
func (l *Lazy[T]) Get(ctx context.Context, load func(context.Context) (T, error)) (v T, err error) {
	select {
	case <-l.gate:
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
	defer func() { l.gate <- struct{}{} }()
	if !l.done {
		if v, err = load(ctx); err != nil {
			return v, err
		}
		l.v, l.done = v, true
	}
	return l.v, nil
}

// Cache is an LRU cache of values that are expensive to compute, bounded by their total cost. It is safe for concurrent use. Values
// are shared and must not be modified. Make it with NewCache.
type Cache[V any] struct {
	limit int64
	cost  func(V) int64

	mu      sync.Mutex
	used    int64
	entries map[string]*list.Element // of *entry[V]
	recent  *list.List               // front: most recently used
}

type entry[V any] struct {
	key   string
	value *Lazy[V]
	cost  int64
}

// NewCache returns an empty cache.
func NewCache[V any](limit int64, cost func(V) int64) *Cache[V] {
	return &Cache[V]{limit: limit, cost: cost, entries: map[string]*list.Element{}, recent: list.New()}
}

// Get returns the value of key; if it is not cached, load computes it.
func (c *Cache[V]) Get(ctx context.Context, key string, load func(context.Context) (V, error)) (V, error) {
	e := c.entry(key)
	v, err := e.value.Get(ctx, load)
	if err == nil {
		c.charge(e, c.cost(v))
	}
	return v, err
}

func (c *Cache[V]) entry(key string) *entry[V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[key]; ok {
		c.recent.MoveToFront(el)
		return el.Value.(*entry[V])
	}
	e := &entry[V]{key: key, value: NewLazy[V]()}
	c.entries[key] = c.recent.PushFront(e)
	return e
}

// charge counts an entry's cost, once, and evicts other entries to make room for it.
func (c *Cache[V]) charge(e *entry[V], cost int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[e.key]; !ok || el.Value != any(e) {
		return // dropped meanwhile
	}
	c.used += cost - e.cost
	e.cost = cost
	for c.used > c.limit && c.recent.Len() > 1 {
		old := c.recent.Remove(c.recent.Back()).(*entry[V])
		delete(c.entries, old.key)
		c.used -= old.cost
	}
}
