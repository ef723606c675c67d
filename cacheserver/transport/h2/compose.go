// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// composer composes the bytes of one turn to write as a list of slices: frame headers and header blocks from its scratch space, and
// messages without copying. Only the goroutine that has the turn may use it.
type composer struct {
	control frameBuffer // queued control frames, which are sent first
	frame   int         // maximum frame length
	whole   bool        // a message may be sent as one frame
	table   uint32      // maximum size of the encoder's dynamic table
	encoder *hpack.Encoder
	block   bytes.Buffer // output of encoder
	slices  [][]byte
	scratch []byte
}

func newComposer() *composer {
	c := &composer{table: maxTable}
	c.encoder = hpack.NewEncoder(&c.block)
	return c
}

// configure sets the peer's current limits.
func (c *composer) configure(frame int, whole bool, table uint32) {
	c.frame, c.whole = frame, whole
	if table != c.table {
		c.table = table
		c.encoder.SetMaxDynamicTableSize(table)
	}
}

// controlAlone returns the control frames as the slices of a turn in which nothing else is written.
func (c *composer) controlAlone() [][]byte { return append(c.slices[:0], c.control) }

// compose returns the slices of one turn of a stream: the queued control frames, then the contents of o, with n bytes of DATA.
//
// A message's first frame is short, even if the peer accepts longer ones: gRPC C++ passes on data that arrived in one frame without
// copying it out of its read buffer, at any address, and copies data that arrived in several frames to memory from malloc, where
// numbers are aligned. A client with its own buffers shows that by the maximum window size, and gets messages in one frame as far as
// its maximum frame size allows.
func (c *composer) compose(stream uint32, o *outgoing, n int, halfOpen bool) [][]byte {
	c.slices, c.scratch = c.slices[:0], c.scratch[:0]
	if len(c.control) > 0 {
		c.slices = append(c.slices, c.control)
	}
	if o.head != nil {
		c.addHeaders(stream, o.head, 0)
		o.head = nil
	}
	o.left -= n
	for n > 0 {
		size := min(n, c.frame)
		if !o.begun && !c.whole {
			size = min(size, defaultFrame)
		}
		o.begun = true
		c.addFrame(size, http2.FrameData, 0, stream)
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
		c.addHeaders(stream, o.tail, http2.FlagHeadersEndStream)
		if halfOpen { // the rest of the request would not be read, RFC 9113 section 8.1
			c.addFrame(4, http2.FrameRSTStream, 0, stream)
			c.addScratch(binary.BigEndian.AppendUint32(nil, uint32(http2.ErrCodeNo)))
		}
	}
	return c.slices
}

// addHeaders adds a header block as a HEADERS frame and, if necessary, CONTINUATION frames.
func (c *composer) addHeaders(stream uint32, fields []hpack.HeaderField, flags http2.Flags) {
	c.block.Reset()
	for _, f := range fields {
		_ = c.encoder.WriteField(f) // writing to a bytes.Buffer never fails
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

// addFrame adds the nine bytes of a frame header.
func (c *composer) addFrame(length int, kind http2.FrameType, flags http2.Flags, stream uint32) {
	at := len(c.scratch)
	c.scratch = append(c.scratch, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	c.scratch = binary.BigEndian.AppendUint32(c.scratch, stream)
	c.slices = append(c.slices, c.scratch[at:])
}

// addScratch adds a copy of b. Slices added before stay valid when the scratch space grows, since they refer to the old one.
func (c *composer) addScratch(b []byte) {
	at := len(c.scratch)
	c.scratch = append(c.scratch, b...)
	c.slices = append(c.slices, c.scratch[at:])
}
