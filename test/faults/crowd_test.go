// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// request is a call that many clients make at once. It returns once the call has ended.
type request struct {
	name    string
	address string
	call    func(ctx context.Context, service flight.FlightServiceClient) error
}

// drain reads a stream to its end.
func drain[M any](stream interface{ Recv() (M, error) }, err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// action is a DoAction of the head.
func (c *cluster) action(name, body string) request {
	return request{name + " " + body[:min(len(body), 80)], c.headAddr, func(ctx context.Context, s flight.FlightServiceClient) error {
		return drain(s.DoAction(ctx, &flight.Action{Type: name, Body: []byte(body)}))
	}}
}

// do makes one DoAction of the head, and decodes its answer.
func (c *cluster) do(name string, body map[string]any, into any) {
	c.t.Helper()
	body["v"] = 1
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx := deadline.Context(c.t)
	stream, err := service(ctx, c.t, c.headAddr).DoAction(ctx, &flight.Action{Type: name, Body: text})
	if err != nil {
		c.t.Fatal(err)
	}
	result, err := stream.Recv()
	if err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	if err := json.Unmarshal(result.GetBody(), into); err != nil {
		c.t.Fatal(err)
	}
}

// partOf is the messages of a part with n rows.
func partOf(t *testing.T, ticket string, part, n int) []*flight.FlightData {
	t.Helper()
	command, err := json.Marshal(protocol.PutCommand{V: protocol.Version, Kind: "put", Ticket: ticket, Part: part, Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	values := array.NewInt64Builder(memory.DefaultAllocator)
	values.AppendValues(make([]int64, n), nil)
	var sent recorder
	w := flight.NewRecordWriter(&sent, ipc.WithSchema(oneColumn))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command})
	if err := w.Write(array.NewRecordBatch(oneColumn, []arrow.Array{values.NewArray()}, int64(n))); err != nil {
		t.Fatal(err)
	}
	return append(sent, &flight.FlightData{AppMetadata: fmt.Appendf(nil, `{"rows":%d}`, n)})
}

var oneColumn = arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)

// putOf sends the messages of a part.
func putOf(messages []*flight.FlightData) func(ctx context.Context, s flight.FlightServiceClient) error {
	return func(ctx context.Context, s flight.FlightServiceClient) error {
		stream, err := s.DoPut(ctx)
		if err != nil {
			return err
		}
		for _, m := range messages {
			if stream.Send(proto.CloneOf(m)) != nil {
				break // Recv returns the error with its status
			}
		}
		_ = stream.CloseSend()
		return drain(stream, nil)
	}
}

// crowds are all kinds of calls, with bodies that make their answers, or what is kept for them, as large as clients can.
func (c *cluster) crowds() (all []request) {
	c.t.Helper()
	fields := make([]arrow.Field, 300)
	for i := range fields {
		fields[i] = arrow.Field{Name: fmt.Sprintf("column %d", i), Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)}
	}
	wide := rows.SchemaHeader(arrow.NewSchema(fields, nil))
	parts := many(c.t, 200)
	var begun protocol.Begun
	c.do(protocol.PutBegin, map[string]any{"name": "parts", "parts": protocol.MostParts / 4, "schema": rows.SchemaHeader(oneColumn)}, &begun)
	node := service(c.t.Context(), c.t, c.nodeAddrs[0])
	for part := range parts {
		if err := putOf(partOf(c.t, begun.Ticket, part, 1))(deadline.Context(c.t), node); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, kind := range []string{
		`"kind":"shard","index":0,"total":1000000`, `"kind":"take"`, `"kind":"shard","index":0,"total":1,"filter":"id > 3"`,
		`"kind":"epoch","seed":1,"epoch":0,"shuffle":true,"clump":1,"global_batch":8,"tail":"drop","rank":0,"world":8`,
		`"kind":"shard","index":0,"total":1,"filter":"` + strings.Repeat("id = 1 OR ", 2000) + `id = 2"`,
		`"kind":"shard","index":0,"total":1,"columns":["` + strings.Repeat(`id","`, 5000) + `id"]`,
		`"kind":"shard","index":0,"total":1,"dataset":"none"`, strings.Repeat("[", 100_000),
	} {
		d := &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(`{"v":1,` + kind + `}`)}
		all = append(all, request{"GetFlightInfo " + kind[:min(len(kind), 60)], c.headAddr, func(ctx context.Context, s flight.FlightServiceClient) error {
			_, err := s.GetFlightInfo(ctx, d)
			return err
		}}, request{"GetSchema " + kind[:min(len(kind), 60)], c.headAddr, func(ctx context.Context, s flight.FlightServiceClient) error {
			_, err := s.GetSchema(ctx, d)
			return err
		}})
	}
	quoted := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			c.t.Fatal(err)
		}
		return string(text)
	}
	all = append(all,
		c.action("status", ""), c.action("sizing", `{"ranks": 100000, "rate": 1e9}`), c.action("none", strings.Repeat("x", 100_000)),
		c.action(protocol.PutBegin, `{"v":1,"name":"wide","parts":65536,"schema":`+quoted(wide)+`}`),
		c.action(protocol.PutBegin, `{"v":1,"name":"laughs","parts":1,"schema":`+quoted(laughs())+`}`),
		c.action(protocol.PutStatus, `{"v":1,"put":`+quoted(begun.Put)+`}`), c.action(protocol.PutStatus, `{"v":1,"put":`+quoted(begun.Put)+`,"most":4096}`),
		c.action(protocol.PutPublish, `{"v":1,"put":"none","receipts":[`+strings.Repeat(`"",`, 10_000)+`""]}`),
		c.action(protocol.PutAbort, `{"v":1,"put":"none"}`), c.action(protocol.PutDrop, `{"v":1,"dataset":"none"}`),
		c.action(protocol.PutCommit, `{"v":1,"dataset":"none","table":"a.b"}`),
		request{"ListFlights", c.headAddr, func(ctx context.Context, s flight.FlightServiceClient) error {
			return drain(s.ListFlights(ctx, &flight.Criteria{Expression: make([]byte, 100_000)}))
		}},
		request{"ListActions", c.headAddr, func(ctx context.Context, s flight.FlightServiceClient) error {
			return drain(s.ListActions(ctx, &flight.Empty{}))
		}},
		request{"DoPut of the head", c.headAddr, putOf([]*flight.FlightData{{FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"laughs"}}, DataHeader: laughs()}})},
		request{"DoPut of another schema", c.nodeAddrs[0], putOf(append([]*flight.FlightData{{FlightDescriptor: partOf(c.t, begun.Ticket, 0, 1)[0].GetFlightDescriptor(), DataHeader: wide}}, partOf(c.t, begun.Ticket, 0, 1)[1:]...))},
		request{"DoPut", c.nodeAddrs[0], putOf(partOf(c.t, begun.Ticket, parts, 50_000))},
	)
	ticket := c.takeTicket()
	whole, err := c.info(deadline.Context(c.t), shardOf(0, 1))
	if err != nil {
		c.t.Fatal(err)
	}
	return append(all,
		request{"DoGet", c.nodeAddrs[0], func(ctx context.Context, s flight.FlightServiceClient) error {
			return drain(s.DoGet(ctx, whole.GetEndpoint()[0].GetTicket()))
		}},
		request{"DoGet of no ticket", c.nodeAddrs[0], func(ctx context.Context, s flight.FlightServiceClient) error {
			return drain(s.DoGet(ctx, &flight.Ticket{Ticket: make([]byte, 100_000)}))
		}},
		request{"DoExchange", c.nodeAddrs[0], func(ctx context.Context, s flight.FlightServiceClient) error {
			stream, err := s.DoExchange(ctx)
			if err != nil {
				return err
			}
			for _, m := range rowsMessage(c.t, ticket, 100_000) {
				if stream.Send(proto.CloneOf(m)) != nil {
					break
				}
			}
			_ = stream.CloseSend()
			return drain(stream, nil)
		}},
		request{"status of a data node", c.nodeAddrs[0], c.action("status", "").call},
	)
}

// TestCrowds makes every kind of call from many clients at once: none may fail inside the server, and no process may take more memory than its limit.
func TestCrowds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, big(t), 1)
	c.headArgs = append(c.headArgs, "--puts")
	c.variables = append(c.variables, headMemory())
	c.nodeArgs = append(c.nodeArgs, "--memory-limit", fmt.Sprint(nodeLimit))
	c.startAll()
	c.await("Ready")
	ctx := deadline.Context(t)
	for _, of := range c.crowds() {
		var callers sync.WaitGroup
		ends := make([]error, many(t, 40))
		for i := range ends {
			callers.Go(func() {
				ctx, done := context.WithCancel(ctx)
				defer done()
				ends[i] = of.call(ctx, service(ctx, t, of.address))
			})
		}
		callers.Wait()
		seen := map[codes.Code]int{}
		for _, err := range ends {
			code := status.Code(err)
			if seen[code]++; code == codes.Internal || code == codes.Unknown || code == codes.DeadlineExceeded {
				t.Errorf("%s: %v", of.name, err)
			}
		}
		t.Logf("%s: %v, the first %v, head %d MiB, node %d MiB", of.name, seen, ends[0], c.head.memory("VmHWM")>>20, c.nodes[0].memory("VmHWM")>>20)
	}
	c.survives()
	c.within()
}
