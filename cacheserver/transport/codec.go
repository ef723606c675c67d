// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that all messages but frames use
	"google.golang.org/grpc/mem"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// Codec is the gRPC codec of all connections: it passes *Raw bytes unchanged, passes frames that Send gives to grpc-go without
// copying their long slices, and encodes everything else as protobuf. It is safe for concurrent use.
type Codec struct{ proto encoding.CodecV2 }

// NewCodec wraps gRPC's own protobuf codec.
func NewCodec() Codec { return Codec{proto: encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *trackedFrame:
		return m.buffers(), nil
	case *protocol.Raw:
		return mem.BufferSlice{mem.SliceBuffer(*m)}, nil
	}
	data, err := c.proto.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return data, nil
}

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*protocol.Raw); ok {
		if only, ok := single(data); ok {
			*m = protocol.Raw(only)
			return nil
		}
		if room := m.Room(data.Len()); room != nil {
			data.CopyTo(room)
			*m = room
			return nil
		}
		*m = data.Materialize()
		return nil
	}
	if err := c.proto.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	return nil
}

// single returns the bytes of a message in one buffer that the garbage collector owns, as package h2's are, rather than a pool.
func single(data mem.BufferSlice) (mem.SliceBuffer, bool) {
	if len(data) != 1 {
		return nil, false
	}
	only, ok := data[0].(mem.SliceBuffer)
	return only, ok
}

// Name implements encoding.CodecV2; the content type stays application/grpc+proto.
func (c Codec) Name() string { return c.proto.Name() }
