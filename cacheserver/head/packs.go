// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
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
	"github.com/kubeflow/datacache/cacheserver/head/packing"
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

// packable returns what a request packs.
func (s *service) packable(v *view, r protocol.Request) (of packing.Rows, err error) {
	columns, err := v.plan.columns([]string{"length(" + r.Packs.Column + ")"})
	if err != nil {
		return of, status.Errorf(codes.InvalidArgument, "command: column: %s", strings.TrimPrefix(err.Error(), "columns: "))
	}
	m, column := measures{s.cluster}, columns[0]
	return packing.Rows{
		Fingerprint: v.fingerprint(), Len: v.rows, Column: column,
		Lengths: func(ctx context.Context, from, to uint64) (packing.Sequence, error) {
			return m.lengths(ctx, v, r, column, from, to)
		},
		Longer: func(ctx context.Context, most int32) (packing.Long, error) { return m.longer(ctx, v, column, most) },
	}, nil
}

// packsInfo answers a request for packs with one endpoint, at the head itself. It checks that no row is too long.
func (s *service) packsInfo(ctx context.Context, v *view, r protocol.Request, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	of, err := s.packable(v, r)
	if err != nil {
		return nil, err
	}
	if longest := r.Packs.Longest(); longest > 0 && longest < math.MaxInt32 {
		found, err := s.windows.Longer(ctx, of, int32(longest))
		if err != nil {
			return nil, err
		}
		if found.Count > 0 {
			return nil, packing.LongError(r, found, v.rows)
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
	of, err := a.service.packable(v, r)
	if err != nil {
		return err
	}
	a.about.Steps = []protocol.PackedStep{}
	for position < rows && uint64(len(a.about.Steps)) < r.Packs.Steps && a.taken < mostAnswer {
		w, err := a.service.windows.Get(ctx, of, r, position)
		if err != nil {
			return err
		}
		steps := w.Steps()
		if step > 0 && step >= steps {
			return status.Errorf(codes.InvalidArgument, "command: step = %d: want less than %d, the number of steps of the window at position %d", step, steps, position)
		}
		for ; step < steps && uint64(len(a.about.Steps)) < r.Packs.Steps && a.taken < mostAnswer; step++ {
			if err := a.add(w, step, r.Share); err != nil {
				return err
			}
		}
		if step >= steps {
			position, step = position+uint64(w.Rows), 0
		}
	}
	a.about.End = position >= rows
	return nil
}

// add adds a step.
func (a *packsAnswer) add(w *packing.Window, step int, s epoch.Share) error {
	about, share := w.About[step], w.Share(step, s)
	first, _ := w.Step(step)
	about.Micro = len(share)
	for _, number := range share {
		if number >= 0 {
			about.Pieces += len(w.Pack(first + int(number)))
		}
	}
	need := int64(about.Pieces)*answerPiece + answerStep
	if err := a.service.windows.Reserve(need); err != nil {
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
		for _, p := range w.Pack(first + int(number)) {
			micro.Append(int32(i))
			row.Append(w.Numbers[p.Row])
			from.Append(p.Start)
			length.Append(p.Length)
		}
	}
	return nil
}
