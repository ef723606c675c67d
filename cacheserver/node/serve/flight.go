// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/exchange"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// service is a data node's Flight service. Methods that it does not define return UNIMPLEMENTED.
type service struct {
	transport.Flight
	server *Server
}

// call runs handler with the rows of a ticket.
func (s *service) call(ctx context.Context, ticket []byte, handler func(Lent) error) error {
	lent, err := s.server.cfg.Admit(ctx, ticket)
	if err != nil {
		return err
	}
	defer lent.Done()
	if err := s.server.cfg.Access.Stream(ctx, lent.Ticket.Reader); err != nil {
		return err
	}
	return lent.Calls.during(ctx, func() error { return handler(lent) })
}

// DoGet streams the rows of a shard, epoch or mix ticket.
func (s *service) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	return s.call(stream.Context(), t.GetTicket(), func(lent Lent) error {
		if lent.Ticket.Kind == protocol.Take {
			return status.Error(codes.InvalidArgument, "ticket: for random access; put it into the CMD descriptor of DoExchange")
		}
		length, err := batchLength(stream.Context())
		if err != nil {
			return err
		}
		return s.server.answer(lent, stream, func(out *sender) error {
			if lent.Ticket.Kind == protocol.Shard && lent.Ticket.Split == nil && lent.Index == nil && lent.Early == nil {
				return out.shard()
			}
			return out.epoch(length)
		})
	})
}

// DoPut receives a part of a put.
func (s *service) DoPut(stream flight.FlightService_DoPutServer) error {
	return s.server.cfg.Put(stream)
}

// DoAction answers the actions of all servers, and the head's.
func (s *service) DoAction(action *flight.Action, stream flight.FlightService_DoActionServer) error {
	if action.GetType() == protocol.PutWrite {
		return s.server.cfg.Write(action.GetBody(), stream)
	}
	return s.Flight.DoAction(action, stream)
}

// maxTakeRows is the maximum number of row numbers in a batch of an exchange: at 8 bytes each they fit in a request of 4 MiB.
const maxTakeRows = 500_000

// DoExchange answers batches of row numbers with batches of rows. Before the ticket is Lent, only the ticket in the first message
// is parsed.
func (s *service) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	first, err := receiveMessage(stream)
	if err != nil && !errors.Is(err, io.EOF) { // a stream without messages is treated as one without a ticket
		return err
	}
	return s.call(stream.Context(), first.Command, func(lent Lent) error {
		if lent.Ticket.Kind != protocol.Take {
			return status.Errorf(codes.InvalidArgument, "ticket: of kind %q, DoExchange wants one of kind %q", lent.Ticket.Kind, protocol.Take)
		}
		if err := receiveSchema(stream, first); err != nil {
			return err
		}
		return s.server.answer(lent, stream, (*sender).exchange)
	})
}

// exchange answers the batches of an exchange until the client closes its side.
func (s *sender) exchange() error {
	for {
		request, err := receiveMessage(s.stream)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(request.Header) == 0 { // a message with only application metadata requests nothing
			continue
		}
		s.begin = time.Now()
		asked, err := askedRows(request)
		if err != nil {
			return err
		}
		if err := s.take(asked); err != nil {
			return err
		}
	}
}

// receiveMessage reads the next message of an exchange, io.EOF after the last one.
func receiveMessage(stream grpc.ServerStream) (exchange.Message, error) {
	var raw protocol.Raw
	if err := stream.RecvMsg(&raw); err != nil {
		return exchange.Message{}, err
	}
	m, err := exchange.ParseMessage(raw)
	if err != nil {
		return exchange.Message{}, status.Errorf(codes.InvalidArgument, "exchange: %v", err)
	}
	return m, nil
}

// receiveSchema checks the schema of the requests, which arrives with the ticket or after it.
func receiveSchema(stream grpc.ServerStream, m exchange.Message) error {
	for len(m.Header) == 0 {
		var err error
		if m, err = receiveMessage(stream); errors.Is(err, io.EOF) {
			return status.Error(codes.InvalidArgument, "exchange: ended before the schema of the requests")
		}
		if err != nil {
			return err
		}
	}
	if err := exchange.Schema(m); err != nil {
		return status.Errorf(codes.InvalidArgument, "exchange: %v", err)
	}
	return nil
}

// askedRows decodes a batch of row indices.
func askedRows(request exchange.Message) (exchange.Rows, error) {
	rows, err := exchange.Batch(request)
	if err != nil {
		return exchange.Rows{}, status.Errorf(codes.InvalidArgument, "exchange: %v", err)
	}
	if rows.Len() > maxTakeRows {
		return exchange.Rows{}, status.Errorf(codes.InvalidArgument, "exchange: a batch of %d row indices, want at most %d", rows.Len(), maxTakeRows)
	}
	return rows, nil
}

// runs converts the requested indices of filtered rows to the node's own rows, with one run for each.
func (l Lent) runs(asked exchange.Rows) ([]rows.Run, error) {
	runs := make([]rows.Run, asked.Len())
	for i := range runs {
		row := asked.At(i)
		if row < l.Ticket.Bounds[0] || row >= l.Ticket.Bounds[1] {
			return nil, status.Errorf(codes.OutOfRange, "exchange: row %d is not on this data node, which holds rows %d to %d", row, l.Ticket.Bounds[0], l.Ticket.Bounds[1]-1)
		}
		runs[i] = rows.Run{First: uint64(row - l.Ticket.Bounds[0]), Rows: 1}
	}
	if l.Index == nil {
		return runs, nil
	}
	var some [blockRuns]uint64
	for left := runs; len(left) > 0; left = left[min(len(left), blockRuns):] {
		block := some[:min(len(left), blockRuns)]
		for i := range block {
			block[i] = left[i].First
		}
		l.Index.Select(block)
		for i, row := range block {
			left[i].First = row
		}
	}
	return runs, nil
}
