// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// turn is a stream's request to write on its connection. Turns are granted in the order of requests; a stream that may send nothing
// because of the peer's flow-control windows is passed over.
type turn struct {
	stream *stream
	data   int  // number of bytes of DATA to write
	frames bool // there are frames to write that are not subject to flow control
	last   bool // the written frames end the stream

	ready chan struct{} // buffered; receives one value when the turn is granted or has failed
	// Set before ready receives a value:
	granted  int   // bytes of DATA that may be written
	halfOpen bool  // the peer has not sent END_STREAM
	err      error // not nil: the turn failed, and nothing may be written
}

// unsendable returns the error with which a write of the stream fails, nil if it may write. conn.mu is held.
func (t *turn) unsendable() error {
	switch s := t.stream; {
	case s.closed != nil:
		return s.closed
	case s.ending && !t.last:
		return errCallEnded
	}
	return nil
}

// writer serializes the writes of a connection's goroutines. One goroutine at a time holds the connection, from begin or take until end.
// While none holds it, nothing that could be written is waiting: no turn that the windows allow and, unless the connection has failed, no
// control frame. Make it with init.
type writer struct {
	raw  net.Conn
	net  net.Conn    // raw, or TLS over it
	mu   *sync.Mutex // the connection's; protects all fields but composer and buffers
	fail func(error) // ends the connection; called with mu held

	timeout time.Duration // time limit for writing one turn; 0: none
	peer    peerSettings
	window  sendWindow // the connection's flow-control window
	writing bool       // a goroutine holds the connection
	still   sync.Cond  // signaled when writing is false and nothing is to be written
	waiting []*turn
	control controlFrames
	failed  error // why nothing is written any more

	// Used only by the goroutine that holds the connection.
	composer *composer
	buffers  net.Buffers
}

func (w *writer) init(c *conn) {
	*w = writer{
		raw: c.raw, net: c.net, mu: &c.mu, fail: c.fail, window: defaultWindow,
		peer: peerSettings{window: defaultWindow, frame: defaultFrame, table: maxTable}, composer: newComposer(),
	}
	w.still.L = w.mu
	w.control.framer = http2.NewFramer(&w.control.frames, nil)
}

// begin waits until the turn is granted and returns how many bytes of DATA may be written. The caller then holds the connection until end.
func (w *writer) begin(t *turn) (int, error) {
	w.mu.Lock()
	if err := t.unsendable(); err != nil {
		w.mu.Unlock()
		return 0, err
	}
	// If nobody is writing, no stream that could write is waiting (see next), so the caller may start at once.
	if !w.writing && w.grant(t) {
		w.mu.Unlock()
		return t.granted, nil
	}
	t.err = nil
	if t.ready == nil {
		t.ready = make(chan struct{}, 1)
	}
	w.waiting = append(w.waiting, t)
	w.mu.Unlock()
	if t.last && t.data == 0 { // return the error of a call whose context has ended
		<-t.ready
		return t.granted, t.err
	}
	select {
	case <-t.ready:
		return t.granted, t.err
	case <-t.stream.ctx.Done():
	}
	w.mu.Lock()
	if i := slices.Index(w.waiting, t); i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
		w.mu.Unlock()
		return 0, contextError(t.stream.ctx)
	}
	w.mu.Unlock()
	<-t.ready // granted or failed in the meantime
	return t.granted, t.err
}

// grant grants t and reserves window for it if some of it can be written now. mu is held, and no goroutine holds the connection.
func (w *writer) grant(t *turn) bool {
	n := min(sendWindow(w.peer.piece(t.data)), w.window, t.stream.sendable)
	if n <= 0 && !t.frames {
		return false
	}
	n = max(n, 0)
	w.window -= n
	t.stream.sendable -= n
	t.granted, t.halfOpen = int(n), !t.stream.remote
	if t.last && t.granted == t.data { // close it before the peer sees END_STREAM and opens the next stream
		t.stream.close(errCallEnded)
	}
	w.take()
	return true
}

// take makes the caller the holder of the connection, which also writes the queued control frames. mu is held.
func (w *writer) take() {
	w.writing = true
	w.control.frames, w.composer.control = w.composer.control[:0], w.control.frames
	w.composer.configure(w.peer.frame, w.peer.takesWhole(), w.peer.table)
	if w.timeout > 0 {
		_ = w.raw.SetWriteDeadline(time.Now().Add(w.timeout)) // on a closed connection the write fails
	}
}

// end releases the connection after a write, whose error it takes.
func (w *writer) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = false
	if err != nil {
		w.fail(err)
	}
	w.next()
}

// next grants the first waiting turn of which something can be written. It must be called after every change that may enable a stream to
// write. mu is held.
func (w *writer) next() {
	if w.writing {
		return
	}
	for i, t := range w.waiting {
		if w.grant(t) {
			w.waiting = slices.Delete(w.waiting, i, i+1)
			t.ready <- struct{}{}
			return
		}
	}
	if len(w.control.frames) > 0 && w.failed == nil {
		w.take()
		go func() { w.end(w.write(w.composer.controlAlone())) }()
		return
	}
	w.still.Broadcast()
}

// dismiss fails the stream's waiting turns with err. mu is held.
func (w *writer) dismiss(s *stream, err error) {
	w.waiting = slices.DeleteFunc(w.waiting, func(t *turn) bool {
		if t.stream != s {
			return false
		}
		t.err = err
		t.ready <- struct{}{}
		return true
	})
}

// stopLocked waits until no goroutine holds the connection. If the connection has failed, none will hold it again. mu is held.
func (w *writer) stopLocked() {
	for w.writing {
		w.still.Wait()
	}
}
