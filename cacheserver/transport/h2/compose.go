// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// composer makes the bytes of one turn to write as a list of slices: frame headers and header blocks from its scratch space, messages where
// they lie. Only the goroutine that has the turn may use it.
type composer struct {
	control frameBuffer // gathered control frames, which go first
	frame   int         // length of the longest frame
	whole   bool        // a message may be one frame
	table   uint32      // size of the encoder's table
	encoder *hpack.Encoder
	block   bytes.Buffer // what encoder writes
	slices  [][]byte
	scratch []byte
}

func newComposer() *composer {
	c := &composer{table: maxTable}
	c.encoder = hpack.NewEncoder(&c.block)
	return c
}

// configure takes over what the peer accepts now.
func (c *composer) configure(frame int, whole bool, table uint32) {
	c.frame, c.whole = frame, whole
	if table != c.table {
		c.table = table
		c.encoder.SetMaxDynamicTableSize(table)
	}
}

// controlAlone lists the control frames as the slices of a turn that nothing else is written in.
func (c *composer) controlAlone() [][]byte { return append(c.slices[:0], c.control) }

// compose lists the slices of one turn of a stream: the gathered control frames, then what o has, with n bytes of DATA.
//
// A message's first frame is short, whatever the peer takes: gRPC C++ hands out what came in one frame where it lies in
// its read buffer, at any address, and what came in several from malloc, where numbers lie aligned. A client that has
// buffers of its own says so by the largest window there is, and gets whole messages as far as its frame size goes.
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
		if halfOpen { // nobody will read what the peer still sends, RFC 9113 section 8.1
			c.addFrame(4, http2.FrameRSTStream, 0, stream)
			c.addScratch(binary.BigEndian.AppendUint32(nil, uint32(http2.ErrCodeNo)))
		}
	}
	return c.slices
}

// addHeaders adds a header block as one HEADERS frame and the CONTINUATION frames that it needs.
func (c *composer) addHeaders(stream uint32, fields []hpack.HeaderField, flags http2.Flags) {
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
func (c *composer) addFrame(length int, kind http2.FrameType, flags http2.Flags, stream uint32) {
	at := len(c.scratch)
	c.scratch = append(c.scratch, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	c.scratch = binary.BigEndian.AppendUint32(c.scratch, stream)
	c.slices = append(c.slices, c.scratch[at:])
}

// addScratch adds a copy of b. Slices added before stay good when the scratch space grows: they keep the old one.
func (c *composer) addScratch(b []byte) {
	at := len(c.scratch)
	c.scratch = append(c.scratch, b...)
	c.slices = append(c.slices, c.scratch[at:])
}
