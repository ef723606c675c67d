// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"encoding/binary"
	"net"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/transport/shared"
)

// ShareMemory gives clients on this machine memory in which their messages are passed, until ctx ends. It does nothing if the server listens at
// something else than a TCP port, as in simulated networks.
func (srv *Server) ShareMemory(ctx context.Context) error {
	listener, ok := srv.cfg.Flight.(*net.TCPListener)
	if !ok {
		return nil
	}
	at, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	return srv.shared.Serve(ctx, at.Port)
}

// sharing is the memory that a stream shares with its client. The zero value has none.
type sharing struct {
	memory *shared.Memory
	slot   *shared.Slot // for the next message; nil: none was taken for it
}

// share starts to use the memory that the client has named in its call, if it has.
func (s *sender) share() {
	if named := metadata.ValueFromIncomingContext(s.stream.Context(), protocol.SharedHeader); len(named) == 1 {
		s.shares.memory = s.server.shared.Use(named[0])
	}
}

// done ends the use of the memory.
func (h *sharing) done() {
	if h.memory == nil {
		return
	}
	if h.slot != nil {
		h.memory.Return(uint32(h.slot.Number))
	}
	h.memory.Done()
}

// columns returns the columns of the next message. If the client shares memory, the message goes to a slot of it that the client does not
// use; columns waits for one.
func (s *sender) columns() (*rows.Projection, error) {
	h := &s.shares
	if h.memory == nil {
		return s.Columns, nil
	}
	if h.slot == nil {
		begin := time.Now()
		err := s.whileClientReads(s.most, func() error {
			h.slot = h.memory.Take(s.stream.Context())
			return status.FromContextError(s.stream.Context().Err()).Err()
		})
		s.begin = s.begin.Add(time.Since(begin)) // the time that a message took leaves out the wait
		if err != nil {
			return nil, err
		}
	}
	if front := s.front(); h.slot != nil && front < len(h.slot.Bytes) {
		return s.Columns.Into(h.slot.Bytes[front:]), nil
	}
	return s.Columns, nil // the client does not share it any more, or there are very many columns
}

const (
	// ipcAlign is the alignment of the body of a message in a slot, as Arrow recommends.
	ipcAlign = 64
	// ipcMark begins an encapsulated message of Arrow's IPC format.
	ipcMark = 0xffffffff
)

// front is the number of bytes of a slot before the body: those of the message's header.
func (s *sender) front() int {
	return (8 + s.Columns.HeaderBytes() + ipcAlign - 1) / ipcAlign * ipcAlign
}

// inSlot completes the encapsulated message whose body is in the stream's slot, and returns the frame that tells the client about it.
func (s *sender) inSlot(m rows.Message, metadata []byte) (frame *protocol.Frame, bytes int64) {
	slot, front := s.shares.slot, s.front()
	s.shares.slot = nil // now the client's
	binary.LittleEndian.PutUint32(slot.Bytes, ipcMark)
	binary.LittleEndian.PutUint32(slot.Bytes[4:], uint32(front-8))
	clear(slot.Bytes[8+copy(slot.Bytes[8:], m.Header) : front])
	m.Release()
	return protocol.NewSlotFrame(metadata, slot.Number, front+m.BodyLen), int64(front + m.BodyLen)
}
