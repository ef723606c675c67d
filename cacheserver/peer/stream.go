// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/wire"
)

const (
	service    = "datacache.peer.v1.Peer"
	joinMethod = "/" + service + "/Join"
	authHeader = "authorization"
)

// rawStream is what client and server streams have in common.
type rawStream interface {
	Context() context.Context
	SendMsg(m any) error
	RecvMsg(m any) error
}

// Stream sends Out messages and receives In messages. One goroutine may send while another receives.
type Stream[Out, In any] struct{ raw rawStream }

// HeadStream is the head's end of a node's stream.
type HeadStream = Stream[ToNode, ToHead]

// NodeStream is the node's end.
type NodeStream = Stream[ToHead, ToNode]

// Context ends when the stream does.
func (s Stream[Out, In]) Context() context.Context { return s.raw.Context() }

// Send blocks until the transport took the message.
func (s Stream[Out, In]) Send(message Out) error {
	text, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode %T: %w", message, err)
	}
	return s.raw.SendMsg((*wire.Raw)(&text))
}

// Recv blocks for the next message. Bytes that are no message end in INVALID_ARGUMENT.
func (s Stream[Out, In]) Recv() (In, error) {
	var (
		text    wire.Raw
		message In
	)
	if err := s.raw.RecvMsg(&text); err != nil {
		return message, err
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

// Register lets nodes join over the server. A join whose secret differs is refused as UNAUTHENTICATED; an
// empty secret admits every node. join owns the stream until it returns.
func Register(server grpc.ServiceRegistrar, secret string, join func(HeadStream) error) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Join", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				if err := authorize(stream.Context(), secret); err != nil {
					return err
				}
				return join(HeadStream{stream})
			},
		}},
	}, nil)
}

func authorize(ctx context.Context, secret string) error {
	if secret == "" {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	for _, got := range md.Get(authHeader) {
		if subtle.ConstantTimeCompare([]byte(got), []byte("Bearer "+secret)) == 1 {
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, "the node's cache secret differs from the head's; give both the same")
}

// Join opens a node's stream to the head. It ends with ctx.
func Join(ctx context.Context, conn *grpc.ClientConn, secret string) (NodeStream, error) {
	if secret != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, authHeader, "Bearer "+secret)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Join", ServerStreams: true, ClientStreams: true}, joinMethod)
	if err != nil {
		return NodeStream{}, fmt.Errorf("join the head at %s: %w", conn.Target(), err)
	}
	return NodeStream{stream}, nil
}
