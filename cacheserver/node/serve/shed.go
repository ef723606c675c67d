// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"time"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

const (
	// shedAfter is how long a client must not have read anything before its stream may be ended to free memory for another.
	shedAfter = 5 * time.Second
	// memoryWait is how long a stream waits for memory before it is rejected, and memoryPoll is the polling interval.
	memoryWait, memoryPoll = shedAfter + time.Second, 50 * time.Millisecond
	// maxWaiting is the maximum number of waiting streams, since they need memory too.
	maxWaiting = 128
)

// memory reserves memory for connections and requests. It does not wait; if there is no memory, it ends an idle stream.
type memory struct{ server *Server }

// Reserve implements transport.Memory.
func (m memory) Reserve(n int64) error { return m.orShed(m.server.cfg.Budget.Clients().Reserve(n)) }

// Extend implements transport.Memory.
func (m memory) Extend(n int64) error { return m.orShed(m.server.cfg.Budget.Clients().Extend(n)) }

// Connect implements transport.Memory.
func (m memory) Connect(n int64) error { return m.orShed(m.server.cfg.Budget.Clients().Connect(n)) }

func (m memory) orShed(err error) error {
	if err != nil {
		m.server.streams.shed(time.Now())
	}
	return err
}

// Free implements transport.Memory.
func (m memory) Free() int64 { return m.server.cfg.Budget.Clients().Free() }

// Release implements transport.Memory.
func (m memory) Release(n int64) { m.server.cfg.Budget.Clients().Release(n) }

// withMemory calls reserve again as long as there is too little memory, and frees memory by ending streams that are not read. It does
// not wait if reserve could not succeed even without any streams.
func (srv *Server) withMemory(ctx context.Context, reserve func() error) error {
	if waiting := srv.waiting.Add(1); waiting > maxWaiting {
		srv.waiting.Add(-1)
		return reserve()
	}
	defer srv.waiting.Add(-1)
	for end := time.Now().Add(memoryWait); ; {
		err := reserve()
		var full *offheap.ExhaustedError
		if !errors.As(err, &full) || full.Need > srv.cfg.Budget.Heap()/4 || time.Now().After(end) {
			return err
		}
		srv.streams.shed(time.Now())
		select {
		case <-ctx.Done():
			return err
		case <-time.After(memoryPoll):
		}
	}
}
