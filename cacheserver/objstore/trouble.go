// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import "sync"

// troubles are the reads that are being tried again. The zero value is ready.
type troubles struct {
	mu    sync.Mutex
	reads int
	last  string
}

// retried is one read's place in troubles; the zero value is a read that has not failed.
type retried struct{ counted bool }

// note keeps why a read is tried again.
func (t *troubles) note(r *retried, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.counted {
		r.counted = true
		t.reads++
	}
	t.last = text
}

// end takes out a read that is over.
func (t *troubles) end(r *retried) {
	if !r.counted { // the usual case takes no lock
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads--
}

// Trouble says in one line which read is tried again now and why, the latest if there are several; it is empty if
// none is. It covers the Stores made by With.
func (s *Store) Trouble() string {
	t := &s.stats.troubles
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reads == 0 {
		return ""
	}
	return t.last
}
