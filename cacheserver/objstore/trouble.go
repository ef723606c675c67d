// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import "sync"

// troubles records the reads that are being retried. The zero value is ready to use.
type troubles struct {
	mu    sync.Mutex
	reads int
	last  string
}

// retried is the state of one read in troubles; the zero value is a read that has not failed.
type retried struct{ counted bool }

// note records why a read is retried.
func (t *troubles) note(r *retried, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.counted {
		r.counted = true
		t.reads++
	}
	t.last = text
}

// end removes a read that has finished.
func (t *troubles) end(r *retried) {
	if !r.counted { // the usual case needs no lock
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads--
}

// Trouble returns one line that names the read being retried and the reason, the latest if there are several; it is empty if there is
// none. It includes the Stores made by With.
func (s *Store) Trouble() string {
	t := &s.stats.troubles
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reads == 0 {
		return ""
	}
	return t.last
}
