// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Memory is a budget for everything that clients make the server hold: connections, calls, requests until the handler asks for the
// next one, and responses that are encoded here. The sender of a Message reserves memory for it. Implementations must be safe for
// concurrent use.
type Memory interface {
	// Reserve reserves n bytes, or nothing and returns an error with the bytes needed and available.
	Reserve(n int64) error
	// Extend is Reserve for the messages of a call that are longer than shortMessage together: it leaves room for connections and for short
	// requests, so that whoever does not complete long messages keeps nobody out.
	Extend(n int64) error
	// Connect is Reserve for a connection: it leaves room for the requests of those that are open.
	Connect(n int64) error
	// Free is about how many bytes clients may still reserve.
	Free() int64
	Release(n int64)
}

// unlimited is the Memory of a server without a budget.
type unlimited struct{}

func (unlimited) Reserve(int64) error { return nil }
func (unlimited) Extend(int64) error  { return nil }
func (unlimited) Connect(int64) error { return nil }
func (unlimited) Free() int64         { return math.MaxInt64 }
func (unlimited) Release(int64)       {}

const (
	// connMemory is the approximate memory of a connection with one call, tlsMemory the additional memory of TLS.
	connMemory, tlsMemory = 64 << 10, 192 << 10
	// newMemory is the approximate memory of a connection before its first call, newTLSMemory the same with TLS.
	newMemory, newTLSMemory = 12 << 10, 32 << 10
	// connWait is how long a connection waits for memory, and connPoll how often it looks.
	connWait, connPoll = time.Minute, 200 * time.Millisecond
	// callMemory is the approximate memory of a further call besides its header fields and messages: a goroutine, contexts, the stream.
	callMemory = 16 << 10
	// copies is the maximum number of copies of a received byte in memory: the received and the decoded one, or two during the growth
	// of a buffer.
	copies = 2
	// shortMessage is the memory of messages for which Memory.Extend is not called.
	shortMessage = 16 << 10
	// firstPiece is how much of a message's memory is made before any of it has arrived.
	firstPiece = 64 << 10
	// maxSlices is the maximum length of the list of a message's slices that a stream or connection keeps for the next one.
	maxSlices = 1 << 10
	// maxRefused is the maximum number of running calls on a connection at which a call that gets no memory is still rejected with a
	// status, since that needs memory too.
	maxRefused = 16
)

// memoryOf estimates the memory of a request's header fields.
func memoryOf(r *request) int64 {
	total := int64(len(r.path))
	for name, values := range r.metadata {
		for _, v := range values {
			total += int64(len(name) + len(v) + 32) // as RFC 9113 section 6.5.2 counts
		}
	}
	return total
}

// ConnectSoon reserves n bytes for a connection. If there is no memory, it waits a while for others to release some, as long as free, which may
// make them, returns true.
func ConnectSoon(memory Memory, n int64, free func() bool) error {
	for end := time.Now().Add(connWait); ; time.Sleep(connPoll) {
		if err := memory.Connect(n); err == nil || !free() || time.Now().After(end) {
			return err
		}
	}
}

// reserve reserves n more bytes for messages that hold some.
func reserve(memory Memory, held, n int64) error {
	if held+n > shortMessage {
		return memory.Extend(n)
	}
	return memory.Reserve(n)
}

// exhausted returns the status for a failed reservation.
func exhausted(what string, err error) error {
	return status.Errorf(codes.ResourceExhausted, "%s: %v", what, err)
}

// hold reserves n more bytes for the message being received.
func (s *stream) hold(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over { // a goroutine other than the handler's is receiving
		return errCallEnded
	}
	if err := reserve(s.budget, s.held, n); err != nil {
		return exhausted("no memory for a request", err)
	}
	s.held += n
	return nil
}

// letGo releases the memory of the last received message; over means that no more messages will be received.
func (s *stream) letGo(over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.Release(s.held)
	s.held, s.over = 0, s.over || over
}

// Trust takes the stream's messages out of the budget for clients, which clients may use up. The handler calls it when the other side has
// proved that it is a part of this system, whose messages are few and short.
func (s *stream) Trust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.Release(s.held)
	s.held, s.budget = 0, unlimited{}
	s.in.trust()
}
