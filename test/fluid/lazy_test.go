// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import "sync"

// lazy makes one value for each key. It is safe for concurrent use.
type lazy[T any] struct {
	mu     sync.Mutex
	values map[string]T
}

func (l *lazy[T]) get(key string, create func() T) T {
	l.mu.Lock()
	defer l.mu.Unlock()
	if value, ok := l.values[key]; ok {
		return value
	}
	if l.values == nil {
		l.values = map[string]T{}
	}
	l.values[key] = create()
	return l.values[key]
}

func (l *lazy[T]) find(key string) (T, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	value, ok := l.values[key]
	return value, ok
}
