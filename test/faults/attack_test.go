// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// transports are the values of --transport; every attack must fail with each.
var transports = []transport.Implementation{transport.H2, transport.GRPC}

// survives asserts that no process has ended and that clients get their rows.
func (c *cluster) survives() {
	c.t.Helper()
	for _, p := range append([]*process{c.head}, c.nodes...) {
		p.alive()
	}
	c.servesAll(1)
}

// takeTicket returns a ticket of a data node for random access.
func (c *cluster) takeTicket() []byte {
	c.t.Helper()
	info, err := c.info(deadline.Context(c.t), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(`{"v":1,"kind":"take"}`)})
	if err != nil {
		c.t.Fatal(err)
	}
	return info.GetEndpoint()[0].GetTicket().GetTicket()
}

// exchange sends messages to the first data node and returns the error that ends the call.
func (c *cluster) exchange(ctx context.Context, messages ...*flight.FlightData) error {
	c.t.Helper()
	ctx, done := context.WithCancel(ctx) // done closes the connections
	defer done()
	stream, err := service(ctx, c.t, c.nodeAddrs[0]).DoExchange(ctx)
	if err != nil {
		return err
	}
	for _, m := range messages {
		_ = stream.Send(proto.CloneOf(m)) // Recv returns the error with its status
	}
	_ = stream.CloseSend()
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// countlessFields returns a schema whose vector of fields claims a length of 2^32-1.
func countlessFields() []byte {
	b := flatbuffers.NewBuilder(64)
	b.StartVector(4, 0, 4)
	fields := b.EndVector(0)
	b.StartObject(2)
	b.PrependUOffsetTSlot(1, fields, 0)
	return schemaMessage(b, b.EndObject(), func(buf []byte) {
		// The vector is empty, so its length is the last word.
		flatbuffers.WriteUint32(buf[len(buf)-4:], 1<<32-1)
	})
}

// schemaMessage completes a builder with an IPC message of a schema.
func schemaMessage(b *flatbuffers.Builder, schema flatbuffers.UOffsetT, change func([]byte)) []byte {
	b.StartObject(5)
	b.PrependInt16Slot(0, 4, 0)
	b.PrependByteSlot(1, 1, 0)
	b.PrependUOffsetTSlot(2, schema, 0)
	b.Finish(b.EndObject())
	change(b.FinishedBytes())
	return bytes.Clone(b.FinishedBytes())
}

// laughs returns a schema of nested fields that each have the next one as their child many times: a few KB for 16^30 fields (a
// "billion laughs" attack).
func laughs() []byte {
	b := flatbuffers.NewBuilder(1 << 10)
	name := b.CreateString("row")
	b.StartObject(0)
	kind := b.EndObject()
	field := func(children flatbuffers.UOffsetT) flatbuffers.UOffsetT {
		b.StartObject(7)
		b.PrependUOffsetTSlot(0, name, 0)
		b.PrependByteSlot(2, 13, 0) // a struct
		b.PrependUOffsetTSlot(3, kind, 0)
		if children != 0 {
			b.PrependUOffsetTSlot(5, children, 0)
		}
		return b.EndObject()
	}
	repeat := func(child flatbuffers.UOffsetT, n int) flatbuffers.UOffsetT {
		b.StartVector(4, n, 4)
		for range n {
			b.PrependUOffsetT(child)
		}
		return b.EndVector(n)
	}
	nested := field(0)
	for range 30 {
		nested = field(repeat(nested, 16))
	}
	fields := repeat(nested, 1)
	b.StartObject(2)
	b.PrependUOffsetTSlot(1, fields, 0)
	return schemaMessage(b, b.EndObject(), func([]byte) {})
}

// compressedRows returns a batch whose compressed values claim an uncompressed length of 2^46 bytes.
func compressedRows(t *testing.T) (schema, batch *flight.FlightData) {
	t.Helper()
	var sent recorder
	of := arrow.NewSchema([]arrow.Field{{Name: "row", Type: arrow.PrimitiveTypes.Int64}}, nil)
	w := flight.NewRecordWriter(&sent, ipc.WithSchema(of), ipc.WithZstd())
	builder := array.NewInt64Builder(memory.DefaultAllocator)
	builder.AppendValues(make([]int64, 1000), nil)
	if err := w.Write(array.NewRecordBatch(of, []arrow.Array{builder.NewArray()}, 1000)); err != nil {
		t.Fatal(err)
	}
	schema, batch = sent[0], sent[1]
	flatbuffers.WriteUint64(batch.DataBody, 1<<46) // the uncompressed length of the first buffer
	return schema, batch
}

// recorder records the messages that arrow-go's writer sends.
type recorder []*flight.FlightData

func (r *recorder) Send(m *flight.FlightData) error {
	*r = append(*r, proto.CloneOf(m))
	return nil
}

// TestHostileExchange sends requests for rows that crashed data nodes when arrow-go parsed them, with and without a ticket.
func TestHostileExchange(t *testing.T) {
	underAttack(t, func(t *testing.T, c *cluster) {
		ticket := &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: c.takeTicket()}
		schema, batch := compressedRows(t)
		tests := []struct {
			name     string
			messages []*flight.FlightData
			code     codes.Code
			message  string
		}{
			{"no message", nil, codes.Unauthenticated, "ticket"},
			{"countless fields without a ticket", []*flight.FlightData{{DataHeader: countlessFields()}}, codes.Unauthenticated, "ticket"},
			{"countless fields", []*flight.FlightData{{FlightDescriptor: ticket, DataHeader: countlessFields()}}, codes.InvalidArgument, "leads out of the message"},
			{"nested fields without a ticket", []*flight.FlightData{{DataHeader: laughs()}}, codes.Unauthenticated, "ticket"},
			{"nested fields", []*flight.FlightData{{FlightDescriptor: ticket, DataHeader: laughs()}}, codes.InvalidArgument, "want batches of one int64 column named row"},
			{"a compressed batch", []*flight.FlightData{{FlightDescriptor: ticket}, schema, batch}, codes.InvalidArgument, "compressed"},
			{"a long name", []*flight.FlightData{{FlightDescriptor: ticket, DataHeader: []byte(strings.Repeat("x", 1<<16))}}, codes.InvalidArgument, "leads out"},
		}
		for _, tt := range tests {
			err := c.exchange(deadline.Context(t), tt.messages...)
			t.Logf("%s: %v", tt.name, err)
			wantStatus(t, err, tt.code, tt.message)
		}
		c.survives()
		c.within()
	})
}
