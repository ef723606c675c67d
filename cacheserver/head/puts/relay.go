// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package puts

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/exchange"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/put"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// DoPut makes a dataset of the rows of one stream, whose descriptor is the PATH [name]: a put of one part, which the head passes on to a data
// node and publishes when the client ends the stream, which need not tell the number of its rows. A dataset of the name is replaced.
func (s *Service) DoPut(stream flight.FlightService_DoPutServer) error {
	if err := s.mayPut(stream.Context()); err != nil {
		return err
	}
	var raw protocol.Raw
	if err := stream.RecvMsg(&raw); err != nil {
		return err
	}
	first, err := exchange.ParseMessage(raw)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "put: %v", err)
	}
	if first.Name() == nil || len(first.Header) == 0 {
		return status.Error(codes.InvalidArgument, `put: want the descriptor PATH [name] and the schema in the first message; a put of several parts begins with the action put.begin and goes to the data nodes`)
	}
	begun, err := s.begin(stream.Context(), protocol.Begin{Name: string(first.Name()), Mode: protocol.PutReplace, Parts: 1, Schema: first.Header})
	if err != nil {
		return err
	}
	published, err := s.putOne(stream, begun, first)
	if err != nil {
		_ = s.Cluster.Change(func(c *put.Catalog) error { return c.Abort(begun.Put) }) // it may be published
		return err
	}
	text, err := json.Marshal(published)
	if err != nil {
		return status.Errorf(codes.Internal, "encode the result: %v", err)
	}
	return stream.Send(&flight.PutResult{AppMetadata: text})
}

// putOne passes the stream on to the data node of part 0, and publishes it.
func (s *Service) putOne(stream flight.FlightService_DoPutServer, begun protocol.Begun, first exchange.Message) (published protocol.Published, err error) {
	nodes := s.Cluster.Nodes()
	conn, err := transport.Dial(nodes[peer.Put{Parts: 1, Nodes: len(nodes)}.Node(0)].Address, s.TLS, nil)
	if err != nil {
		return published, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	to, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, protocol.MethodDoPut)
	if err != nil {
		return published, err
	}
	command, err := json.Marshal(protocol.PutCommand{V: protocol.Version, Kind: "put", Ticket: begun.Ticket, End: protocol.EndOpen})
	if err != nil {
		return published, status.Errorf(codes.Internal, "encode the command: %v", err)
	}
	result, err := relay(stream, to, &flight.FlightData{FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command}, DataHeader: first.Header})
	if err != nil {
		return published, err
	}
	var part protocol.PutResult
	if err := json.Unmarshal(result.GetAppMetadata(), &part); err != nil {
		return published, status.Errorf(codes.Internal, "the data node's receipt: %v", err)
	}
	return s.publish(stream.Context(), begun.Put, []protocol.PutPart{part.PutPart})
}

// relay sends first and then all messages of a client to a data node, and returns its answer.
func relay(from grpc.ServerStream, to grpc.ClientStream, first *flight.FlightData) (*flight.PutResult, error) {
	err := to.SendMsg(first)
	for err == nil {
		var raw protocol.Raw
		received := from.RecvMsg(&raw)
		if errors.Is(received, io.EOF) {
			err = to.CloseSend()
			break
		}
		if received != nil {
			return nil, received
		}
		err = to.SendMsg(&raw)
	}
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: the node has ended the call, and says why
		return nil, err
	}
	result := &flight.PutResult{}
	return result, to.RecvMsg(result)
}
