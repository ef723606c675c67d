// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// outgoing is what a stream writes next: header fields, DATA, trailer fields, each of which may be missing.
type outgoing struct {
	head  []hpack.HeaderField
	data  [][]byte            // consumed from the front
	left  int                 // bytes in data
	begun bool                // some of data is written
	free  func()              // tells data's owner that it is not read any more
	tail  []hpack.HeaderField // the last of the stream
}

// write writes all of o, in as many turns as windows and other streams make of it. s.sending is held.
func (s *stream) write(o *outgoing) error {
	for {
		t := &s.turn
		t.stream, t.data, t.frames = s, o.left, o.head != nil || o.left == 0
		t.last = o.tail != nil
		n, err := s.conn.begin(t)
		if err != nil {
			return err
		}
		whole := n == o.left
		err = s.conn.write(s.conn.compose(s, o, n, t.halfOpen))
		s.conn.end(err)
		if err != nil {
			return errBroken
		}
		if whole {
			return nil
		}
	}
}

// compose lists the slices of one turn: control frames that have gathered, then what o has, with n bytes of DATA. The
// caller has the turn.
//
// A message's first frame is short, whatever the peer takes: gRPC C++ hands out what came in one frame where it lies in
// its read buffer, at any address, and what came in several from malloc, where numbers lie aligned. A client that has
// buffers of its own says so by the largest window there is, and gets whole messages as far as its frame size goes.
func (c *conn) compose(s *stream, o *outgoing, n int, halfOpen bool) [][]byte {
	c.slices, c.scratch = c.slices[:0], c.scratch[:0]
	if len(c.sending) > 0 {
		c.slices = append(c.slices, c.sending)
	}
	if o.head != nil {
		c.addHeaders(s.id, o.head, 0)
		o.head = nil
	}
	o.left -= n
	for n > 0 {
		size := min(n, c.frame)
		if !o.begun && !c.whole {
			size = min(size, defaultFrame)
		}
		o.begun = true
		c.addFrame(size, http2.FrameData, 0, s.id)
		for rest := size; rest > 0; {
			k := min(rest, len(o.data[0]))
			if k > 0 {
				c.slices = append(c.slices, o.data[0][:k])
			}
			rest -= k
			if o.data[0] = o.data[0][k:]; len(o.data[0]) == 0 {
				o.data = o.data[1:]
			}
		}
		n -= size
	}
	if o.left == 0 && o.tail != nil {
		c.addHeaders(s.id, o.tail, http2.FlagHeadersEndStream)
		if halfOpen { // nobody will read what the peer still sends, RFC 9113 section 8.1
			c.addFrame(4, http2.FrameRSTStream, 0, s.id)
			c.addScratch(binary.BigEndian.AppendUint32(nil, uint32(http2.ErrCodeNo)))
		}
	}
	return c.slices
}

// addHeaders adds a header block as one HEADERS frame and the CONTINUATION frames that it needs.
func (c *conn) addHeaders(stream uint32, fields []hpack.HeaderField, flags http2.Flags) {
	c.block.Reset()
	for _, f := range fields {
		_ = c.encoder.WriteField(f) // into a bytes.Buffer, which takes everything
	}
	kind, block := http2.FrameHeaders, c.block.Bytes()
	for {
		n := min(len(block), c.frame)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		c.addFrame(n, kind, flags, stream)
		c.addScratch(block[:n])
		if block = block[n:]; len(block) == 0 {
			return
		}
		kind, flags = http2.FrameContinuation, 0
	}
}

// addFrame adds a frame's first nine bytes.
func (c *conn) addFrame(length int, kind http2.FrameType, flags http2.Flags, stream uint32) {
	at := len(c.scratch)
	c.scratch = append(c.scratch, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	c.scratch = binary.BigEndian.AppendUint32(c.scratch, stream)
	c.slices = append(c.slices, c.scratch[at:])
}

// addScratch adds a copy of b. Slices added before stay good when the scratch space grows: they keep the old one.
func (c *conn) addScratch(b []byte) {
	at := len(c.scratch)
	c.scratch = append(c.scratch, b...)
	c.slices = append(c.slices, c.scratch[at:])
}

// write sends the slices, in one system call when the connection is plain TCP. The caller has the turn.
func (c *conn) write(slices [][]byte) error {
	defer clear(slices) // what they pointed to must not be kept alive by an idle connection
	if t, ok := c.net.(*tlsConn); ok {
		return t.writeSlices(slices)
	}
	c.buffers = slices
	if _, err := c.buffers.WriteTo(c.net); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
