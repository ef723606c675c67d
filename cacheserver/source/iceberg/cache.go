// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"container/list"
	"context"
	"sync"
)

// lazy is a value that is computed at its first use. Concurrent callers wait for one of them to compute it; if that fails, the next
// one tries. Call init before use.
type lazy[T any] struct {
	gate chan struct{} // holds a token unless the value is being computed

	mu   sync.Mutex
	done bool
	v    T
}

func (l *lazy[T]) init() {
	l.gate = make(chan struct{}, 1)
	l.gate <- struct{}{}
}

func (l *lazy[T]) get(ctx context.Context, load func(context.Context) (T, error)) (T, error) {
	if v, ok := l.peek(); ok {
		return v, nil
	}
	var zero T
	select {
	case <-l.gate:
	case <-ctx.Done():
		return zero, context.Cause(ctx)
	}
	defer func() { l.gate <- struct{}{} }()
	if v, ok := l.peek(); ok { // computed while this call waited
		return v, nil
	}
	v, err := load(ctx)
	if err != nil {
		return zero, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.v, l.done = v, true
	return v, nil
}

func (l *lazy[T]) peek() (T, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.v, l.done
}

// cache is an LRU cache of values that are expensive to compute, bounded by their total cost. It is safe for concurrent use. Values
// are shared and must not be modified.
type cache[V any] struct {
	limit int64
	cost  func(V) int64

	mu      sync.Mutex
	used    int64
	entries map[string]*list.Element // of *entry[V]
	recent  *list.List               // front: most recently used
}

type entry[V any] struct {
	key   string
	value lazy[V]
	cost  int64
}

func newCache[V any](limit int64, cost func(V) int64) *cache[V] {
	return &cache[V]{limit: limit, cost: cost, entries: map[string]*list.Element{}, recent: list.New()}
}

// get returns the value of key; if it is not cached, load computes it.
func (c *cache[V]) get(ctx context.Context, key string, load func(context.Context) (V, error)) (V, error) {
	e := c.entry(key)
	v, err := e.value.get(ctx, load)
	if err == nil {
		c.charge(e, c.cost(v))
	}
	return v, err
}

func (c *cache[V]) entry(key string) *entry[V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[key]; ok {
		c.recent.MoveToFront(el)
		return el.Value.(*entry[V])
	}
	e := &entry[V]{key: key}
	e.value.init()
	c.entries[key] = c.recent.PushFront(e)
	return e
}

// charge counts an entry's cost, once, and evicts other entries to make room for it.
func (c *cache[V]) charge(e *entry[V], cost int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[e.key]; !ok || el.Value != any(e) {
		return // dropped meanwhile
	}
	c.used += cost - e.cost
	e.cost = cost
	for c.used > c.limit && c.recent.Len() > 1 {
		oldest := c.recent.Back()
		old := oldest.Value.(*entry[V])
		c.recent.Remove(oldest)
		delete(c.entries, old.key)
		c.used -= old.cost
	}
}
