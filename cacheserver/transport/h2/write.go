// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"fmt"

	"golang.org/x/net/http2/hpack"
)

// outgoing is what a stream writes next: header fields, DATA and trailer fields, each of which may be missing.
type outgoing struct {
	head  []hpack.HeaderField
	data  [][]byte            // consumed from the front
	left  int                 // number of bytes in data
	begun bool                // a part of data has been written
	free  func()              // tells data's owner that it is not read any more
	tail  []hpack.HeaderField // the end of the stream
}

// write blocks until o is sent, in several turns if windows or other streams require it. s.sending is held.
func (s *stream) write(o *outgoing) error {
	out := &s.conn.out
	for {
		t := &s.turn
		t.stream, t.data, t.frames = s, o.left, o.head != nil || o.left == 0
		t.last = o.tail != nil
		n, err := out.begin(t)
		if err != nil {
			return err
		}
		whole := n == o.left
		err = out.write(out.composer.compose(s.id, o, n, t.halfOpen))
		out.end(err)
		if err != nil {
			return errBroken
		}
		if whole {
			return nil
		}
	}
}

// write sends the slices, in one system call if the connection is plain TCP. The caller has the turn.
func (w *writer) write(slices [][]byte) error {
	defer func() { // an idle connection must not keep them alive
		clear(slices)
		if w.buffers = nil; cap(slices) > maxSlices {
			w.composer.slices = nil
		}
	}()
	if t, ok := w.net.(*tlsConn); ok {
		return t.writeSlices(slices)
	}
	w.buffers = slices
	if _, err := w.buffers.WriteTo(w.net); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
