// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/pack"
	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// packsSchema is that of the rows of packs: micro-batch, row of the selection, first token and number of tokens.
var packsSchema = arrow.NewSchema([]arrow.Field{
	{Name: "micro", Type: arrow.PrimitiveTypes.Int32}, {Name: "row", Type: arrow.PrimitiveTypes.Int64},
	{Name: "from", Type: arrow.PrimitiveTypes.Int32}, {Name: "length", Type: arrow.PrimitiveTypes.Int32},
}, nil)

const (
	// answerPiece and answerStep are the memory that a piece and a step take in an answer until it is sent.
	answerPiece, answerStep = 64, 1 << 10
	// mostAnswer is the memory that an answer may take before its last step.
	mostAnswer = 4 << 20
)

// lengthColumn returns the index of the lengths of a request's column.
func lengthColumn(v *view, r protocol.Request) (int, error) {
	columns, err := v.plan.columns([]string{"length(" + r.Packs.Column + ")"})
	if err != nil {
		return 0, status.Errorf(codes.InvalidArgument, "command: column: %s", strings.TrimPrefix(err.Error(), "columns: "))
	}
	return columns[0], nil
}

// packsInfo answers a request for packs with one endpoint, at the head itself. It checks that no row is too long.
func (s *service) packsInfo(ctx context.Context, v *view, r protocol.Request, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	column, err := lengthColumn(v, r)
	if err != nil {
		return nil, err
	}
	if r.Packs.Long == pack.Refuse {
		found, err := s.windows.longRows(ctx, v, column, int32(r.Packs.Tokens))
		if err != nil {
			return nil, err
		}
		if found.count > 0 {
			return nil, longError(r, found, v.rows)
		}
	}
	info, err := (&answer{view: v, request: r, records: -1}).info(d, s.sealer, "", time.Now(), 0)
	if err != nil {
		return nil, err
	}
	info.Schema, info.TotalBytes = flight.SerializeSchema(packsSchema, memory.DefaultAllocator), -1
	info.Endpoint = []*flight.FlightEndpoint{{Ticket: &flight.Ticket{Ticket: d.GetCmd()}}}
	return info, nil
}

// longError is the error of a request whose rows are too long.
func longError(r protocol.Request, found long, rows int64) error {
	which, limit := "one has", fmt.Sprintf("tokens = %d", r.Packs.Tokens)
	if found.row >= 0 {
		which = fmt.Sprintf("row %d has", found.row)
	}
	if rows > 0 {
		which = fmt.Sprintf("%d of %d rows are too long, of which %s", found.count, rows, which)
	}
	if r.Packs.Long == pack.Split {
		limit = fmt.Sprintf("the packs of a window have, %d", r.Packs.Room())
	}
	return status.Errorf(codes.InvalidArgument, `command: column %q: %s %d tokens, more than %s: set long to "split", "truncate" or "drop", use more tokens, or leave the rows out with a filter`,
		r.Packs.Column, which, found.length, limit)
}

// DoGet sends the packs of a rank, a few steps of them. The ticket is the command of the request; those of data nodes are none.
func (s *service) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	if !bytes.HasPrefix(t.GetTicket(), []byte("{")) {
		return status.Error(codes.Unimplemented, "ticket: a head sends packs alone; connect to the location of the endpoint")
	}
	ctx := stream.Context()
	request, v, err := s.open(ctx, &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: t.GetTicket()})
	if err != nil {
		return err
	}
	if request.Kind != protocol.Pack {
		return status.Errorf(codes.InvalidArgument, "ticket: a command of kind %q, want %q", request.Kind, protocol.Pack)
	}
	if v, err = s.choose(ctx, v, request); err != nil {
		return err
	}
	a := packsAnswer{service: s, records: array.NewRecordBuilder(memory.DefaultAllocator, packsSchema)}
	defer a.release()
	if err := a.make(ctx, v, request); err != nil {
		return err
	}
	metadata, err := json.Marshal(a.about)
	if err != nil {
		return status.Errorf(codes.Internal, "encode metadata: %v", err)
	}
	w := flight.NewRecordWriter(stream, ipc.WithSchema(packsSchema))
	defer func() { _ = w.Close() }()
	return w.WriteWithAppMetadata(a.records.NewRecordBatch(), metadata)
}

// packsAnswer is an answer that is being made.
type packsAnswer struct {
	service *service
	records *array.RecordBuilder
	about   protocol.PackedMetadata
	taken   int64 // reserved memory
}

func (a *packsAnswer) release() {
	a.records.Release()
	a.service.cfg.Budget.Clients().Release(a.taken)
}

// make adds the packs of a rank, step by step.
func (a *packsAnswer) make(ctx context.Context, v *view, r protocol.Request) error {
	position, step, rows := r.Packs.Position, int(r.Packs.Step), uint64(v.rows)
	if position > rows {
		return status.Errorf(codes.InvalidArgument, "command: position = %d: want at most %d, the number of rows", position, rows)
	}
	column, err := lengthColumn(v, r)
	if err != nil {
		return err
	}
	a.about.Steps = []protocol.PackedStep{}
	for position < rows && uint64(len(a.about.Steps)) < r.Packs.Steps && a.taken < mostAnswer {
		w, err := a.service.windows.get(ctx, v, r, column, position)
		if err != nil {
			return err
		}
		steps := w.plan.Steps()
		if step > 0 && step >= steps {
			return status.Errorf(codes.InvalidArgument, "command: step = %d: want less than %d, the number of steps of the window at position %d", step, steps, position)
		}
		for ; step < steps && uint64(len(a.about.Steps)) < r.Packs.Steps && a.taken < mostAnswer; step++ {
			if err := a.add(w, step, r.Share); err != nil {
				return err
			}
		}
		if step >= steps {
			position, step = position+uint64(w.plan.Rows), 0
		}
	}
	a.about.End = position >= rows
	return nil
}

// add adds a step.
func (a *packsAnswer) add(w *window, step int, s epoch.Share) error {
	about, share := w.plan.steps[step], w.share(step, s)
	first, _ := w.plan.Step(step)
	about.Micro = len(share)
	for _, number := range share {
		if number >= 0 {
			about.Pieces += len(w.plan.Pack(first + int(number)))
		}
	}
	need := int64(about.Pieces)*answerPiece + answerStep
	if err := a.service.windows.reserve(need); err != nil {
		return err
	}
	a.taken += need
	a.about.Steps = append(a.about.Steps, about)
	micro, row := a.records.Field(0).(*array.Int32Builder), a.records.Field(1).(*array.Int64Builder)
	from, length := a.records.Field(2).(*array.Int32Builder), a.records.Field(3).(*array.Int32Builder)
	for i, number := range share {
		if number < 0 {
			continue
		}
		for _, p := range w.plan.Pack(first + int(number)) {
			micro.Append(int32(i))
			row.Append(w.plan.rows[p.Row])
			from.Append(p.Start)
			length.Append(p.Length)
		}
	}
	return nil
}
