// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// Turns is how many streams of a process may make and send messages at a time while several jobs read: two per core, so that the cores
// are busy while some of them wait for the network.
func Turns() int { return 2 * runtime.GOMAXPROCS(0) }

// jobOf returns the job that a stream counts for: that of its ticket, or else the address of the client.
func jobOf(ctx context.Context, t protocol.Ticket) string {
	return cmp.Or(t.Job, transport.Client(ctx))
}

// joinJob adds the stream to its job. The error is a status.
func (s *sender) joinJob(name string) (err error) {
	from := transport.Client(s.stream.Context())
	if s.Ticket.Reader != nil {
		from = name // the job is no claim: it need not share a weight with others of the same address
	}
	s.turn, err = s.server.cfg.Turns.Join(name, from, s.usesTurn)
	var full *fair.LimitError
	if errors.As(err, &full) {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return err
}

// usesTurn reports whether the stream makes a message, or the one that it sends waits for the network. Otherwise it waits for its client.
func (s *sender) usesTurn() bool {
	return s.waiting.Load() == 0 || transport.WaitsForNetwork(s.stream.Context(), mostUnsent)
}

const (
	// mostUnsent is how many bytes of a message may be unsent when its stream's turn ends while others wait for theirs.
	mostUnsent = 128 << 10
	drainPoll  = 300 * time.Microsecond
)

// drain waits until the network has taken the stream's last message, as long as others wait for the stream's turn. Otherwise the kernel
// would keep a message for each stream, and a full network would be shared among streams instead of jobs.
func (s *sender) drain(ctx context.Context) {
	for s.turn.Contended() && transport.WaitsForNetwork(ctx, mostUnsent) {
		s.turn.Draining()
		time.Sleep(drainPoll)
	}
}

// inTurn calls work when it is the stream's turn, which lasts until the stream's next one or, if work fails, until it returns.
func (s *sender) inTurn(work func() error) error {
	ctx := s.stream.Context()
	s.drain(ctx)
	waited, err := s.turn.Take(ctx)
	if waited > 0 {
		s.observers.wait(forTurn, waited)
	}
	if err != nil {
		return status.FromContextError(err).Err()
	}
	if err := work(); err != nil {
		s.turn.Release()
		return err
	}
	return nil
}
