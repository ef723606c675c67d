// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Memory is a budget that everything a client can have the server hold is reserved in: connections, calls, requests until the handler
// asks for the next one, and answers that are encoded here. A Message is its sender's to reserve. Safe for concurrent use.
type Memory interface {
	// Reserve takes n bytes, or none: its error says how many were needed and are there.
	Reserve(n int64) error
	Release(n int64)
}

// unlimited is the memory of a server without a budget.
type unlimited struct{}

func (unlimited) Reserve(int64) error { return nil }
func (unlimited) Release(int64)       {}

const (
	// connMemory is about what a connection takes without calls, tlsMemory what it takes more over TLS.
	connMemory, tlsMemory = 64 << 10, 192 << 10
	// connWait is how long a connection waits for memory.
	connWait = 10 * time.Second
	// callMemory is about what a call takes beside its header fields and messages: a goroutine, contexts, the stream.
	callMemory = 16 << 10
	// copies is how often a received byte is in memory at most: as it came and as it is decoded, or in a buffer that has grown.
	copies = 2
	// maxRefused is how many calls a connection may have running when there is no memory for another one and it is still told so in
	// words, for which memory is needed, too.
	maxRefused = 16
)

// memoryOf is about what a request's header fields take.
func memoryOf(r *request) int64 {
	total := int64(callMemory + len(r.path))
	for name, values := range r.metadata {
		for _, v := range values {
			total += int64(len(name) + len(v) + 32) // as RFC 9113 section 6.5.2 counts
		}
	}
	return total
}

// ReserveSoon reserves n bytes for a connection. It waits a while if there is no memory, as that of others comes back.
func ReserveSoon(memory Memory, n int64) error {
	for end := time.Now().Add(connWait); ; time.Sleep(connWait / 100) {
		if err := memory.Reserve(n); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// exhausted is the status of what there is no memory for.
func exhausted(what string, err error) error {
	return status.Errorf(codes.ResourceExhausted, "%s: %v", what, err)
}

// hold reserves n bytes more for the message that is received.
func (s *stream) hold(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over { // another goroutine than the handler's receives
		return errCallEnded
	}
	if err := s.conn.server.cfg.Memory.Reserve(n); err != nil {
		return exhausted("no memory for a request", err)
	}
	s.held += n
	return nil
}

// letGo gives back what the last received message took; over says that there will be none any more.
func (s *stream) letGo(over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.server.cfg.Memory.Release(s.held)
	s.held, s.over = 0, s.over || over
}
