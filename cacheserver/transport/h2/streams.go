// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import "time"

// streamTable holds a connection's streams and counts its calls. Every open stream has a running call. A call may continue after its
// stream was closed: by the end of the response, by a reset, or because the connection has failed. conn.mu protects it.
type streamTable struct {
	open    map[uint32]*stream // streams that at least one side has not closed
	running int                // handlers
	begun   uint32             // the last stream for which a call was begun
	quiet   time.Time          // when the last call returned
	leaving bool               // the client was told to open no more streams
	drained bool               // no calls are begun any more: the connection ends with the last one
}

// add begins a call.
func (t *streamTable) add(s *stream) {
	t.open[s.id], t.begun = s, s.id
	t.running++
}

// remove counts a call that has returned.
func (t *streamTable) remove() {
	t.running--
	t.quiet = time.Now()
}

// over reports whether the last call has returned and no more will begin.
func (t *streamTable) over() bool { return t.drained && t.running == 0 }
