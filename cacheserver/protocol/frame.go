// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/binary"
	"sync/atomic"
)

// Frame is one FlightData message, encoded by hand so that its body is sent from where it lies.
// Its protobuf form is data_header (field 2), app_metadata (field 3), data_body (field 1000): see Flight.proto.
//
// The body starts at a multiple of 16 bytes. gRPC C++, on which pyarrow stands, puts a message of several
// HTTP/2 frames, 16 KiB each, together in memory from malloc and hands out the body where it lies: numbers
// then lie as their types want, and numpy writes through them at full speed.
//
// It implements h2.Message. Its release function runs exactly once: when the transport has let go of the last body
// slice, when the connection has ended, or when the frame could not be sent.
type Frame struct {
	prefix   []byte
	body     [][]byte
	size     int
	release  func()
	released atomic.Bool
}

const (
	tagHeader   = 2<<3 | 2
	tagMetadata = 3<<3 | 2
	tagBody     = 1000<<3 | 2

	bodyAlign = 16 // of what malloc returns, and so the most that a server can promise
)

// NewFrame makes a frame of an IPC message header, application metadata (nil for none) and body slices, whose
// lengths sum up to bodyLen. The slices must stay as they are until release is called; release may be nil.
func NewFrame(header, metadata []byte, body [][]byte, bodyLen int, release func()) *Frame {
	if release == nil {
		release = func() {}
	}
	var tail []byte
	if len(metadata) > 0 {
		tail = binary.AppendUvarint(tail, tagMetadata)
		tail = binary.AppendUvarint(tail, uint64(len(metadata)))
		tail = append(tail, metadata...)
	}
	pad := 0
	if bodyLen > 0 {
		tail = binary.AppendUvarint(tail, tagBody)
		tail = binary.AppendUvarint(tail, uint64(bodyLen))
		pad = padding(len(header), len(tail))
	}
	prefix := make([]byte, 0, 1+binary.MaxVarintLen64+len(header)+pad+len(tail))
	prefix = binary.AppendUvarint(prefix, tagHeader)
	prefix = binary.AppendUvarint(prefix, uint64(len(header)+pad))
	prefix = append(prefix, header...)
	prefix = append(prefix, make([]byte, pad)...)
	prefix = append(prefix, tail...)
	return &Frame{prefix: prefix, body: body, size: len(prefix) + bodyLen, release: release}
}

// padding is how many zeros must follow an IPC message header, which is a flatbuffer and may be longer than
// what it refers to, for the body behind tail bytes to be aligned.
func padding(header, tail int) int {
	pad := 0
	for (1+len(binary.AppendUvarint(nil, uint64(header+pad)))+header+pad+tail)%bodyAlign != 0 {
		pad++
	}
	return pad
}

// Size is the length of the encoded message in bytes.
func (f *Frame) Size() int { return f.size }

// AppendSlices appends the encoded message in order, as it lies.
func (f *Frame) AppendSlices(to [][]byte) [][]byte { return append(append(to, f.prefix), f.body...) }

// Release runs the release function, the first time that it is called.
func (f *Frame) Release() {
	if !f.released.Swap(true) {
		f.release()
	}
}

// Raw is a message that is its own encoding.
type Raw []byte
