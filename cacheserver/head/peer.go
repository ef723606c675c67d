// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// serveNode runs one node's session: it sends the messages that the cluster queues and applies the node's messages, until the
// connection breaks or the cluster closes the session.
func (h *Head) serveNode(stream peer.HeadStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.Hello == nil {
		return status.Error(codes.InvalidArgument, "the first message must be hello")
	}
	s, err := h.admit(stream.Context(), *first.Hello)
	if err != nil {
		h.cfg.Log.Warn("a data node was refused", "node", first.Hello.Index, "address", first.Hello.Address, "reason", status.Convert(err).Message())
		return err
	}
	stream.Trust()
	h.cfg.Log.Info("a data node joined", "node", s.index, "address", first.Hello.Address, "incarnation", first.Hello.Incarnation)
	ended := make(chan error, 2)
	go func() { ended <- h.receive(s, stream) }()
	go func() { ended <- send(s, stream) }()
	select {
	case err = <-ended:
	case <-s.closed:
		waitAtMost(ended, lastWords)
		err = s.reason
	}
	reason := status.Convert(err).Message()
	tell := h.cfg.Log.Warn
	if h.cluster.leave(s, reason, time.Now()) || h.cfg.OneProcess { // in one process nodes stop with the head, in any order
		tell = h.cfg.Log.Info
	}
	tell("a data node left", "node", s.index, "address", first.Hello.Address, "reason", reason)
	return err
}

// rivalSilence is how long the process with a node's index may be silent before another process may take over the index.
const rivalSilence = 4 * peer.HeartbeatEvery

// admit lets a node join. It rejects the node if a running process at another address has its index: of two processes started with
// the same index, the newer one is rejected.
func (h *Head) admit(ctx context.Context, hello peer.Hello) (*session, error) {
	rival := h.cluster.rival(hello)
	if rival == nil {
		return h.cluster.join(hello, time.Now())
	}
	asked := time.Now()
	ticker := time.NewTicker(peer.HeartbeatEvery / 5)
	defer ticker.Stop()
	for time.Since(asked) < rivalSilence {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		current, heard, address := h.cluster.heardSince(rival, asked)
		if !current {
			return h.admit(ctx, hello)
		}
		if heard {
			return nil, status.Errorf(codes.AlreadyExists, "data node %d is the living process at %s, so the process at %s can't be it; give each data node an index of its own", hello.Index, address, hello.Address)
		}
	}
	return h.cluster.join(hello, time.Now())
}

// receive applies the node's messages until the stream ends.
func (h *Head) receive(s *session, stream peer.HeadStream) error {
	for {
		message, err := stream.Recv()
		if code := status.Code(err); code == codes.InvalidArgument || code == codes.ResourceExhausted {
			return err // what it sent is not a valid message or too long
		}
		if err != nil {
			return connectionLost(err)
		}
		switch {
		case message.Piece != nil:
			err = s.pass(stream.Context(), *message.Piece)
		case message.Planned != nil:
			select {
			case s.planned <- *message.Planned:
			default:
			}
		default:
			err = h.cluster.apply(s, message, time.Now())
		}
		if err != nil {
			return err
		}
	}
}

// send sends the outbox until the session or the stream ends. Messages queued before the session is closed are still sent, since they
// say why.
func send(s *session, stream peer.HeadStream) error {
	for {
		message, err := s.next(stream.Context())
		if err != nil {
			return err
		}
		if err := stream.Send(message); err != nil {
			return connectionLost(err)
		}
	}
}

// connectionLost is why a session ends whose stream ended with err, or with its context.
func connectionLost(err error) error {
	if code := status.Code(err); code == codes.Canceled || errors.Is(err, context.Canceled) {
		return status.Error(codes.Unavailable, "its connection was closed")
	}
	return status.Errorf(codes.Unavailable, "connection lost: %s", status.Convert(err).Message())
}

// next waits for a queued message; queued messages are returned even if the session is closed.
func (s *session) next(ctx context.Context) (peer.ToNode, error) {
	select {
	case m := <-s.out:
		return m, nil
	default:
	}
	select {
	case m := <-s.out:
		return m, nil
	case <-s.closed:
		return peer.ToNode{}, s.reason
	case <-ctx.Done():
		return peer.ToNode{}, connectionLost(ctx.Err())
	}
}

// lastWords is how long a closed session may take to send its queued messages.
const lastWords = time.Second

func waitAtMost(ended <-chan error, wait time.Duration) {
	select {
	case <-ended:
	case <-time.After(wait):
	}
}
