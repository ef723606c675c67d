// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

// streamTable is a connection's streams and calls. No stream is open without its call running. A call may run on after its stream was
// closed, by the last of the response, by a reset or because the connection has failed. conn.mu guards it.
type streamTable struct {
	open    map[uint32]*stream // those that neither side has closed
	running int                // handlers
	begun   uint32             // the last stream whose call was begun
	drained bool               // no call is begun any more: the connection ends with the last one
}

// add begins a call.
func (t *streamTable) add(s *stream) {
	t.open[s.id], t.begun = s, s.id
	t.running++
}

// over says whether the last call has returned and none will begin.
func (t *streamTable) over() bool { return t.drained && t.running == 0 }
