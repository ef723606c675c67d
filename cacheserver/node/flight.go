// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/chunk"
	"github.com/kubeflow/datacache/cacheserver/order"
	"github.com/kubeflow/datacache/cacheserver/rpc"
	"github.com/kubeflow/datacache/cacheserver/wire"
)

// service is a data node's side of Arrow Flight. What it does not define answers UNIMPLEMENTED.
type service struct {
	rpc.Flight
	node *Node
}

// DoGet streams the rows of a shard or epoch ticket.
func (s *service) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	lent, err := s.node.admit(t.GetTicket(), time.Now())
	if err != nil {
		return err
	}
	defer lent.rows.Release()
	if lent.ticket.Kind == wire.Take {
		return status.Error(codes.InvalidArgument, "ticket: for random access; put it into the CMD descriptor of DoExchange")
	}
	projection, err := lent.project()
	if err != nil {
		return err
	}
	out := s.node.newSender(stream, lent.ticket.Kind)
	defer out.close()
	if err := out.schema(projection); err != nil {
		return err
	}
	if lent.ticket.Kind == wire.Shard {
		return out.shard(lent, projection)
	}
	length, release, err := batchLength(stream.Context(), s.node.cfg.Budget)
	if err != nil {
		return err
	}
	defer release()
	return out.epoch(lent, projection, length)
}

func (l serving) project() (*chunk.Projection, error) {
	if l.ticket.Columns == nil {
		return l.layout.All(), nil
	}
	projection, err := l.layout.Project(l.ticket.Columns)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "ticket: columns: %v", err)
	}
	return projection, nil
}

// maxTakeRows bounds one batch of row numbers in an exchange: at 8 bytes each, what a request of 4 MiB holds.
const maxTakeRows = 500_000

// DoExchange answers batches of row numbers with batches of rows.
func (s *service) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	requests, err := flight.NewRecordReader(stream)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "exchange: the first message must be a schema: %v", err)
	}
	defer requests.Release()
	lent, err := s.node.admit(requests.LatestFlightDescriptor().GetCmd(), time.Now())
	if err != nil {
		return err
	}
	defer lent.rows.Release()
	if lent.ticket.Kind != wire.Take {
		return status.Errorf(codes.InvalidArgument, "ticket: of kind %q, DoExchange wants one of kind %q", lent.ticket.Kind, wire.Take)
	}
	if err := checkRowSchema(requests.Schema()); err != nil {
		return err
	}
	projection, err := lent.project()
	if err != nil {
		return err
	}
	out := s.node.newSender(stream, wire.Take)
	defer out.close()
	if err := out.schema(projection); err != nil {
		return err
	}
	for requests.Next() {
		out.work()
		runs, err := lent.asked(requests.RecordBatch())
		if err != nil {
			return err
		}
		if err := out.take(lent, projection, runs); err != nil {
			return err
		}
	}
	if err := requests.Err(); err != nil {
		return status.Errorf(codes.InvalidArgument, "exchange: %v", err)
	}
	return nil
}

func checkRowSchema(schema *arrow.Schema) error {
	if schema.NumFields() != 1 || schema.Field(0).Name != "row" || schema.Field(0).Type.ID() != arrow.INT64 {
		return status.Errorf(codes.InvalidArgument, "exchange: want batches of one int64 column named row, got %s", schema)
	}
	return nil
}

// asked reads a batch of row indices: one run of the node's own rows for each.
func (l serving) asked(batch arrow.RecordBatch) ([]order.Run, error) {
	column, ok := batch.Column(0).(*array.Int64)
	if !ok || column.NullN() > 0 {
		return nil, status.Error(codes.InvalidArgument, "exchange: row: nulls are no row indices")
	}
	if column.Len() > maxTakeRows {
		return nil, status.Errorf(codes.InvalidArgument, "exchange: a batch of %d row indices, want at most %d", column.Len(), maxTakeRows)
	}
	runs := make([]order.Run, column.Len())
	for i, row := range column.Int64Values() {
		if row < l.ticket.Bounds[0] || row >= l.ticket.Bounds[1] {
			return nil, status.Errorf(codes.OutOfRange, "exchange: row %d is not on this data node, which holds rows %d to %d", row, l.ticket.Bounds[0], l.ticket.Bounds[1]-1)
		}
		runs[i] = order.Run{First: uint64(row - l.ticket.Bounds[0]), Rows: 1}
	}
	return runs, nil
}
