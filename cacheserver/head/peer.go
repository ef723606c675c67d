// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/peer"
)

// serveNode runs one node's session: it sends what the cluster queues and applies what the node reports,
// until the connection breaks or the cluster closes the session.
func (h *Head) serveNode(stream peer.HeadStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.Hello == nil {
		return status.Error(codes.InvalidArgument, "the first message must be hello")
	}
	s, err := h.cluster.join(*first.Hello, time.Now())
	if err != nil {
		h.cfg.Log.Warn("a data node was refused", "node", first.Hello.Index, "address", first.Hello.Address, "reason", status.Convert(err).Message())
		return err
	}
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
	h.cluster.leave(s, reason)
	h.cfg.Log.Warn("a data node left", "node", s.index, "address", first.Hello.Address, "reason", reason)
	return err
}

// receive applies the node's messages until the stream ends.
func (h *Head) receive(s *session, stream peer.HeadStream) error {
	for {
		message, err := stream.Recv()
		if code := status.Code(err); code == codes.InvalidArgument || code == codes.ResourceExhausted {
			return err // what it sent is no message, or too long for one
		}
		if err != nil {
			return status.Errorf(codes.Unavailable, "connection lost: %s", status.Convert(err).Message())
		}
		if err := h.cluster.apply(s, message, time.Now()); err != nil {
			return err
		}
	}
}

// send passes the outbox on until the session or the stream ends. What is queued when the session is closed
// is still sent: it says why.
func send(s *session, stream peer.HeadStream) error {
	for {
		message, err := s.next(stream.Context())
		if err != nil {
			return err
		}
		if err := stream.Send(message); err != nil {
			return status.Errorf(codes.Unavailable, "connection lost: %s", status.Convert(err).Message())
		}
	}
}

// next waits for a queued message; queued ones come before the news that the session is closed.
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
		return peer.ToNode{}, status.FromContextError(ctx.Err()).Err()
	}
}

// lastWords is how long a closed session may take to pass on what is queued.
const lastWords = time.Second

func waitAtMost(ended <-chan error, wait time.Duration) {
	select {
	case <-ended:
	case <-time.After(wait):
	}
}
