// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

const (
	service    = "datacache.peer.v1.Peer"
	joinMethod = "/" + service + "/Join"
)

// rawStream is the common part of client and server streams.
type rawStream interface {
	Context() context.Context
	SendMsg(m any) error
	RecvMsg(m any) error
}

// Stream sends Out messages and receives In messages, each preceded by its MAC. One goroutine may send while another receives.
type Stream[Out, In any] struct {
	raw     rawStream
	out, in *authenticator
}

// HeadStream is the head's end of a node's stream.
type HeadStream = Stream[ToNode, ToHead]

// NodeStream is the node's end.
type NodeStream = Stream[ToHead, ToNode]

// Context ends when the stream does.
func (s Stream[Out, In]) Context() context.Context { return s.raw.Context() }

// Trust tells the transport that the other side has proved that it has the secret: clients can't use up the memory for its messages.
func (s Stream[Out, In]) Trust() {
	if raw, ok := s.raw.(interface{ Trust() }); ok {
		raw.Trust()
	}
}

// Send blocks until the transport has accepted the message.
func (s Stream[Out, In]) Send(message Out) error {
	text, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode %T: %w", message, err)
	}
	sealed := protocol.Raw(s.out.seal(text))
	return s.raw.SendMsg(&sealed)
}

// Recv blocks until the next message arrives. A wrong MAC is an UNAUTHENTICATED error, an invalid message INVALID_ARGUMENT.
func (s Stream[Out, In]) Recv() (In, error) {
	var (
		sealed  protocol.Raw
		message In
	)
	if err := s.raw.RecvMsg(&sealed); err != nil {
		return message, err
	}
	text, ok := s.in.open(sealed)
	if !ok {
		return message, errSecret
	}
	return Decode[In](text)
}

// Decode reads one message.
func Decode[In any](text []byte) (In, error) {
	var message In
	if err := json.Unmarshal(text, &message); err != nil {
		return message, status.Errorf(codes.InvalidArgument, "peer message: %v", err)
	}
	return message, nil
}

// Register lets nodes join through the server. A node with another secret is rejected with UNAUTHENTICATED. join owns the stream
// until it returns.
func Register(server grpc.ServiceRegistrar, secret string, join func(HeadStream) error) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Join", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, raw grpc.ServerStream) error {
				stream, err := within(raw, secret, accept)
				if err != nil {
					return err
				}
				return join(stream)
			},
		}},
	}, nil)
}

// Join opens a node's stream to a head that has the same secret. The stream ends with ctx, which the caller must cancel after an
// error too.
func Join(ctx context.Context, conn *grpc.ClientConn, secret string) (NodeStream, error) {
	raw, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Join", ServerStreams: true, ClientStreams: true}, joinMethod)
	if err != nil {
		return NodeStream{}, fmt.Errorf("join the head at %s: %w", conn.Target(), err)
	}
	return within(raw, secret, greet)
}
