// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/binary"
	"sync/atomic"
)

// Frame is one FlightData message, encoded without protobuf so that its body need not be copied. Its encoding is data_header (field
// 2), app_metadata (field 3), data_body (field 1000): see Flight.proto.
//
// The body starts at a multiple of 16 bytes. gRPC C++, which pyarrow uses, reassembles a message from its HTTP/2 frames of 16 KiB in
// memory from malloc and does not copy the body out of it: so numbers in it are aligned for their types, and numpy writes through
// them at full speed.
//
// Frame implements h2.Message. Its release function runs exactly once: when the transport no longer needs the last body slice, when
// the connection has ended, or when the frame could not be sent.
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
	tagSlot     = 1001<<3 | 2

	bodyAlign = 16 // the alignment of malloc, and so the highest that a server can guarantee
)

// NewFrame makes a frame of an IPC message header, application metadata (nil for none) and body slices whose lengths add up to
// bodyLen. The slices must not change until release is called; release may be nil.
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

// SharedHeader is the header of a call that names the memory which its client shares with the server.
const SharedHeader = "datacache-shared-memory"

// NewSlotFrame makes a frame of application metadata and the place of an encapsulated IPC message in shared memory: field 1001, of which
// Flight knows nothing, has the number of a slot and the length of the message, 4 bytes each.
func NewSlotFrame(metadata []byte, slot, length int) *Frame {
	prefix := make([]byte, 0, 2*binary.MaxVarintLen64+len(metadata)+8)
	prefix = binary.AppendUvarint(prefix, tagMetadata)
	prefix = binary.AppendUvarint(prefix, uint64(len(metadata)))
	prefix = append(prefix, metadata...)
	prefix = binary.AppendUvarint(prefix, tagSlot)
	prefix = binary.AppendUvarint(prefix, 8)
	prefix = binary.LittleEndian.AppendUint32(prefix, uint32(slot))
	prefix = binary.LittleEndian.AppendUint32(prefix, uint32(length))
	return &Frame{prefix: prefix, size: len(prefix), release: func() {}}
}

// padding is the number of zeros to append to an IPC message header so that the body, which follows after tail more bytes, is
// aligned. The header is a flatbuffer, which may have trailing bytes.
func padding(header, tail int) int {
	pad := 0
	for (1+len(binary.AppendUvarint(nil, uint64(header+pad)))+header+pad+tail)%bodyAlign != 0 {
		pad++
	}
	return pad
}

// Size is the length of the encoded message in bytes.
func (f *Frame) Size() int { return f.size }

// AppendSlices appends the slices of the encoded message in order, without copying them.
func (f *Frame) AppendSlices(to [][]byte) [][]byte { return append(append(to, f.prefix), f.body...) }

// Release runs the release function; further calls do nothing.
func (f *Frame) Release() {
	if !f.released.Swap(true) {
		f.release()
	}
}

// Raw is a message that is already encoded.
type Raw []byte

// Room returns memory for a message of so many bytes if r's own is enough, or nearly; see h2.Roomy.
func (r *Raw) Room(size int) []byte {
	switch have := cap(*r); {
	case size <= have:
		return (*r)[:size]
	case size <= have+have/8: // as messages of about one length are, so that a few of them find the longest
		return make([]byte, size, size+size/8)
	}
	return nil
}
