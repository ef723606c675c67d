// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hostile is a malicious client. It keeps tickets to misuse them later. Its methods return an error if a server accepts what it must
// reject; being rejected is no error.
type hostile struct {
	*reader
	world   *world
	kept    []kept         // run's own
	attacks errgroup.Group // under way
}

// kept is an endpoint of an earlier response.
type kept struct {
	answer   answer
	endpoint *flight.FlightEndpoint
	node     int
	holder   *process // the data node at that time
	expires  time.Time
}

// ticketTTL is how long tickets are valid; tickets store whole seconds.
const ticketTTL = 15 * time.Second

// attacks are the attacks of hostile clients, by name.
var attacks = []struct {
	name string
	do   func(h *hostile, ctx context.Context, random *rand.Rand) error
}{
	{"garbage", (*hostile).garbage},
	{"half a request", (*hostile).half},
	{"bad requests", (*hostile).requests},
	{"rows out of range", (*hostile).outOfRange},
	{"streams not read", (*hostile).deaf},
	{"canceled calls", (*hostile).cancels},
}

// run collects and misuses tickets until ctx ends. It returns the first error, which means that a server accepted what it must
// reject.
func (h *hostile) run(ctx context.Context) error {
	for ctx.Err() == nil {
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := h.keep(short)
		for _, misuse := range []func(context.Context) error{h.again, h.again, h.changed, h.neighbour} {
			if !errors.As(err, new(inexcusable)) {
				err = misuse(short)
			}
		}
		cancel()
		if errors.As(err, new(inexcusable)) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second + time.Duration(h.random.IntN(2000))*time.Millisecond):
		}
	}
	return nil
}

// attack starts an attack for a limited time.
func (h *hostile) attack(name string, do func(*hostile, context.Context, *rand.Rand) error, d time.Duration, seed uint64) {
	h.attacks.Go(func() error {
		ctx, cancel := context.WithTimeout(h.world.ctx, d)
		defer cancel()
		if err := do(h, ctx, rand.New(rand.NewPCG(seed, 0))); errors.As(err, new(inexcusable)) {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// keep requests tickets and stores them.
func (h *hostile) keep(ctx context.Context) error {
	holders := h.world.nodesNow()
	a, err := h.ask(ctx, map[string]any{"kind": "shard", "index": 0, "total": 1})
	if err != nil {
		return err
	}
	for _, e := range a.info.GetEndpoint() {
		node, err := a.nodeOf(e)
		if err != nil {
			return err
		}
		if holders[node] == h.world.nodesNow()[node] { // otherwise the node was replaced meanwhile, and it is unknown which one the ticket is for
			h.kept = append(h.kept, kept{a, e, node, holders[node], time.Now().Add(ticketTTL + 2*time.Second)})
		}
	}
	return nil
}

// choose returns one of the stored tickets.
func (h *hostile) choose() (kept, bool) {
	if len(h.kept) == 0 {
		return kept{}, false
	}
	return h.kept[h.random.IntN(len(h.kept))], true
}

// use presents a ticket to a data node, with the call for the ticket's kind, and returns the number of rows received.
func (h *hostile) use(ctx context.Context, k kept, address string, ticket []byte) (int64, error) {
	client, err := h.dial(ctx, address)
	if err != nil {
		return 0, err
	}
	stream, err := client.DoGet(ctx, &flight.Ticket{Ticket: ticket})
	if err != nil {
		return 0, err
	}
	batches, err := flight.NewRecordReader(stream)
	if err != nil {
		return 0, err
	}
	var rows int64
	for {
		batch, err := batches.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		bounds := k.answer.metadata.Nodes[k.node]
		for i := range batch.NumRows() {
			at := bounds[0] + rows + i
			if at >= bounds[1] {
				return rows, inexcusablef("a ticket for rows %v gave more", bounds)
			}
			if err := k.answer.version.rows[at].check(batch, int(i)); err != nil {
				return rows, inexcusablef("a ticket for rows %v: %v", bounds, err)
			}
		}
		rows += batch.NumRows()
	}
}

// again presents a stored ticket again: it must be accepted only by the same incarnation of the node, with the same plan, until it
// expires.
func (h *hostile) again(ctx context.Context) error {
	k, ok := h.choose()
	if !ok {
		return nil
	}
	began, current := time.Now(), h.world.nodesNow()[k.node]
	_, err := h.use(ctx, k, nodeAddr(k.node), k.endpoint.GetTicket().GetTicket())
	switch {
	case err != nil:
		return err
	case current != k.holder && h.world.nodesNow()[k.node] == current:
		return inexcusablef("data node %d takes a ticket for an earlier start of it", k.node)
	case began.After(k.expires):
		return inexcusablef("data node %d takes a ticket that expired %s ago", k.node, began.Sub(k.expires))
	}
	return nil
}

// changed presents a ticket with a flipped bit.
func (h *hostile) changed(ctx context.Context) error {
	k, ok := h.choose()
	if !ok {
		return nil
	}
	ticket := bytes.Clone(k.endpoint.GetTicket().GetTicket())
	ticket[h.random.IntN(len(ticket))] ^= 1 << h.random.IntN(8)
	if _, err := h.use(ctx, k, nodeAddr(k.node), ticket); err == nil || errors.As(err, new(inexcusable)) {
		return inexcusablef("data node %d takes a ticket with a changed bit: %v", k.node, err)
	}
	return nil
}

// neighbour presents a ticket to another data node.
func (h *hostile) neighbour(ctx context.Context) error {
	k, ok := h.choose()
	other := h.random.IntN(len(h.world.nodes))
	if !ok || other == k.node {
		return nil
	}
	if _, err := h.use(ctx, k, nodeAddr(other), k.endpoint.GetTicket().GetTicket()); err == nil || errors.As(err, new(inexcusable)) {
		return inexcusablef("data node %d takes a ticket for data node %d: %v", other, k.node, err)
	}
	return nil
}

// requests sends invalid requests to the head.
func (h *hostile) requests(ctx context.Context, random *rand.Rand) error {
	for _, request := range []map[string]any{
		{"kind": "path", "index": 3, "total": 3},
		{"kind": "path", "index": -1, "total": 3},
		{"kind": "path", "index": 0, "total": 0},
		{"kind": "shard", "index": 0, "total": 1, "columns": []string{"no such column"}},
		{"kind": "take", "surprise": true},
		{"kind": "epoch", "seed": random.Uint64(), "epoch": 1, "shuffle": true, "clump": 0, "global_batch": 1, "tail": "keep", "rank": 0, "world": 1},
		{"kind": string(make([]byte, 100<<10))},
	} {
		_, err := h.ask(ctx, request)
		if code := status.Code(err); err == nil || errors.As(err, new(inexcusable)) || code != codes.InvalidArgument && code != codes.ResourceExhausted && !passing(err) && ctx.Err() == nil {
			return inexcusablef("the request %.80v: %v, want InvalidArgument or ResourceExhausted", request, err)
		}
	}
	return nil
}

// outOfRange requests from a data node a row that it does not hold.
func (h *hostile) outOfRange(ctx context.Context, random *rand.Rand) error {
	a, err := h.ask(ctx, map[string]any{"kind": "take"})
	if err != nil || len(a.info.GetEndpoint()) == 0 {
		return err
	}
	e := a.info.GetEndpoint()[random.IntN(len(a.info.GetEndpoint()))]
	bounds, err := a.boundsOf(e)
	if err != nil {
		return err
	}
	client, err := h.dialEndpoint(ctx, e)
	if err != nil {
		return err
	}
	stream, err := client.DoExchange(ctx)
	if err != nil {
		return err
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(rowSchema))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: e.GetTicket().GetTicket()})
	row := []int64{bounds[0] - 1, bounds[1], -1, 1 << 62}[random.IntN(4)]
	if err := write(writer, []int64{row}); err != nil {
		return statusOf(stream, err)
	}
	batches, err := flight.NewRecordReader(stream)
	if err != nil {
		return err
	}
	batch, err := batches.Read()
	if err == nil {
		return inexcusablef("data node with rows %v answers for row %d with %d rows", bounds, row, batch.NumRows())
	}
	if errors.Is(err, io.EOF) || status.Code(err) != codes.OutOfRange && !passing(err) && ctx.Err() == nil {
		return inexcusablef("data node with rows %v answers for row %d with %v, want OutOfRange", bounds, row, err)
	}
	return nil
}

// garbage sends bytes that are not HTTP/2.
func (h *hostile) garbage(ctx context.Context, random *rand.Rand) error {
	for range 3 {
		conn, err := h.host.dial(ctx, h.anyServer(random))
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		noise := make([]byte, random.IntN(5000))
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		if random.IntN(2) == 0 {
			noise = append([]byte(http2.ClientPreface), noise...)
		}
		if _, err := conn.Write(noise); err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, conn)
	}
	return nil
}

// half announces a long message and sends a part of it, on many streams, until the server closes the connection.
func (h *hostile) half(ctx context.Context, random *rand.Rand) error {
	conn, err := h.host.dial(ctx, h.anyServer(random))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, nil)
	_ = framer.WriteSettings()
	for id := uint32(1); id < 40; id += 2 {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: doExchange(), EndHeaders: true})
		_ = framer.WriteData(id, false, []byte{0, 0, 0x3f, 0xff, 0xff, 1, 2, 3})
	}
	if _, err := conn.Write(out.Bytes()); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, conn)
	return nil
}

// doExchange encodes the header of a call with HPACK.
func doExchange() []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/arrow.flight.protocol.FlightService/DoExchange"},
		{Name: ":authority", Value: "cache"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		_ = encoder.WriteField(f)
	}
	return block.Bytes()
}

// deaf opens streams and does not read them.
func (h *hostile) deaf(ctx context.Context, _ *rand.Rand) error {
	a, err := h.ask(ctx, map[string]any{"kind": "shard", "index": 0, "total": 1})
	if err != nil {
		return err
	}
	for _, e := range a.info.GetEndpoint() {
		client, err := h.dialEndpoint(ctx, e)
		if err != nil {
			return err
		}
		for range 3 {
			if _, err := client.DoGet(ctx, e.GetTicket()); err != nil {
				return err
			}
		}
	}
	<-ctx.Done()
	return nil
}

// cancels cancels calls soon after they began.
func (h *hostile) cancels(ctx context.Context, random *rand.Rand) error {
	client := &reader{host: h.host, truth: h.truth, random: random} // a separate client, since attacks run concurrently
	for range 10 {
		short, cancel := context.WithTimeout(ctx, time.Duration(random.IntN(10000))*time.Microsecond)
		err := client.share(short, 0, 1)
		cancel()
		if errors.As(err, new(inexcusable)) {
			return err
		}
	}
	return nil
}

// anyServer returns the address of the head or a data node.
func (h *hostile) anyServer(random *rand.Rand) string {
	if i := random.IntN(len(h.world.nodes) + 1); i < len(h.world.nodes) {
		return nodeAddr(i)
	}
	return headAddr
}

func (w *world) hostile(shared *truth) *hostile {
	return &hostile{reader: &reader{host: w.net.host(netip.MustParseAddr("10.0.2.1")), truth: shared, random: rand.New(rand.NewPCG(w.net.seed, 99))}, world: w}
}
