// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/put/incoming"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// stream is a DoPut whose client has sent messages and, unless broken is set, ended the stream.
type stream struct {
	grpc.ServerStream
	ctx      context.Context
	messages [][]byte
	broken   bool
	panics   bool // after the messages
	reused   int  // messages that were received in memory of the receiver
	result   *flight.PutResult
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) RecvMsg(m any) error {
	if len(s.messages) == 0 {
		if s.panics {
			panic("while a part is received")
		}
		if s.broken {
			return status.Error(codes.Canceled, "the client has gone")
		}
		return io.EOF
	}
	raw := m.(*protocol.Raw)
	room := raw.Room(len(s.messages[0])) // as the server does
	if room == nil {
		room = make([]byte, len(s.messages[0]))
	} else {
		s.reused++
	}
	copy(room, s.messages[0])
	*raw = room
	s.messages = s.messages[1:]
	return nil
}

func (s *stream) SendMsg(m any) error {
	s.result = m.(*flight.PutResult)
	return nil
}

// wire records the messages that arrow-go's writer sends.
type wire struct {
	t        testing.TB
	messages [][]byte
}

func (w *wire) Send(m *flight.FlightData) error {
	raw, err := proto.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	w.messages = append(w.messages, raw)
	return nil
}

// write encodes batches with the command of a put.
func write(t testing.TB, command string, batches ...arrow.RecordBatch) [][]byte {
	t.Helper()
	w := &wire{t: t}
	writer := flight.NewRecordWriter(w, ipc.WithSchema(batches[0].Schema()))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
	rows := int64(0)
	for _, b := range batches {
		if err := writer.Write(b); err != nil {
			t.Fatal(err)
		}
		rows += b.NumRows()
	}
	if err := w.Send(&flight.FlightData{AppMetadata: fmt.Appendf(nil, `{"rows":%d}`, rows)}); err != nil {
		t.Fatal(err)
	}
	return w.messages
}

var schema = arrow.NewSchema([]arrow.Field{
	{Name: "n", Type: arrow.PrimitiveTypes.Int32},
	{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "l", Type: arrow.ListOf(arrow.StructOf(arrow.Field{Name: "t", Type: arrow.BinaryTypes.LargeString, Nullable: true})), Nullable: true},
	{Name: "f", Type: arrow.FixedSizeListOf(2, arrow.FixedWidthTypes.Boolean), Nullable: true},
	{Name: "z", Type: arrow.FixedWidthTypes.Timestamp_us},
}, nil)

// batch returns rows [lo, hi) of a sequence of rows.
func batch(t testing.TB, lo, hi int) arrow.RecordBatch {
	t.Helper()
	var text strings.Builder
	text.WriteString("[")
	for i := lo; i < hi; i++ {
		if i > lo {
			text.WriteString(",")
		}
		s, l := fmt.Sprintf(`"row %d ü"`, i), fmt.Sprintf(`[{"t":"%d"},{"t":null}]`, i)
		if i%5 == 0 {
			s, l = "null", "null"
		}
		fmt.Fprintf(&text, `{"n":%d,"s":%s,"l":%s,"f":[%t,null],"z":%d}`, i, s, l, i%3 == 0, i)
	}
	text.WriteString("]")
	r, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// open returns a stage of data node 1 of 2, which knows a put of 4 parts, and its ticket.
func open(t *testing.T) (s *Stage, budget *offheap.Budget, ticket string) {
	t.Helper()
	budget = offheap.NewBudget(1 << 30)
	signer := protocol.NewSigner([]byte("key"))
	s = New(Config{Node: 1, Budget: budget, Signer: signer, Log: slog.New(slog.DiscardHandler), Gone: func(string) {}})
	s.Open(peer.Put{ID: "put-1", Name: "a", Parts: 4, Nodes: 2, Schema: rows.SchemaHeader(schema)})
	ticket, err := signer.Sign(protocol.PutTicket{Put: "put-1", Parts: 4, Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	return s, budget, ticket
}

func command(ticket string, part, attempt int) string {
	return fmt.Sprintf(`{"v":1,"kind":"put","ticket":%q,"part":%d,"attempt":%d}`, ticket, part, attempt)
}

// acknowledge answers the reports of a stage as a head does, until the test ends.
func acknowledge(t *testing.T, s *Stage) {
	t.Helper()
	go func() {
		for {
			select {
			case <-t.Context().Done():
				return
			case <-s.News():
				for _, m := range s.Reports() {
					s.Known(peer.Known{ID: m.ID, Parts: m.Parts})
				}
			}
		}
	}()
}

// put puts a part and returns its result.
func put1(t *testing.T, s *Stage, messages [][]byte) protocol.PutResult {
	t.Helper()
	in := &stream{ctx: t.Context(), messages: messages}
	if err := s.Receive(in); err != nil {
		t.Fatal(err)
	}
	var r protocol.PutResult
	if err := json.Unmarshal(in.result.AppMetadata, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParts(t *testing.T) {
	s, budget, ticket := open(t)
	acknowledge(t, s)
	first := put1(t, s, write(t, command(ticket, 2, 1), batch(t, 0, 1000)))
	var pieces []arrow.RecordBatch
	for lo := 0; lo < 1000; lo += 7 {
		pieces = append(pieces, batch(t, lo, min(lo+7, 1000)))
	}
	used := budget.Used()
	again := put1(t, s, write(t, command(ticket, 2, 2), pieces...))
	if again.Hash != first.Hash || again.Rows != 1000 || again.Attempt != 2 {
		t.Errorf("the same rows in other batches: %+v, first %+v", again, first)
	}
	if budget.Used() > used+1<<12 {
		t.Errorf("the same rows take memory: %d bytes, before %d", budget.Used(), used)
	}
	other := put1(t, s, write(t, command(ticket, 2, 3), batch(t, 1, 1001)))
	last := put1(t, s, write(t, command(ticket, 3, 1), batch(t, 1000, 1100)))
	if other.Hash == first.Hash {
		t.Error("other rows have the same hash")
	}
	s.Publish(peer.Publish{ID: "put-1", As: peer.Publication{Fingerprint: "f"}, Parts: []protocol.PutPart{first.PutPart, last.PutPart}})
	held := s.Find("put-1")
	if held == nil || held.NodeRows != 1100 {
		t.Fatalf("published: %+v", held)
	}
	before := budget.Used()
	s.Settle("put-1")
	if budget.Used() >= before {
		t.Errorf("%d bytes in use after the attempt that is not published was freed, %d before", budget.Used(), before)
	}
	want := batch(t, 0, 1100)
	at := int64(0)
	for got, err := range held.Rows.Records(held.Layout.All(), 0, 1100) {
		if err != nil {
			t.Fatal(err)
		}
		if part := want.NewSlice(at, at+got.NumRows()); !array.RecordEqual(got, part) {
			t.Errorf("rows from %d on:\n%v\nwant\n%v", at, got, part)
		}
		at += got.NumRows()
	}
	if at != 1100 {
		t.Errorf("%d rows", at)
	}
	s.Unput("put-1")
	if budget.Used() != 0 {
		t.Errorf("%d bytes are in use after everything was freed", budget.Used())
	}
}

// TestMemoryOfMessages puts batches of random sizes, some without rows: the memory of messages is used again, and never while rows in it are in
// no chunk yet.
func TestMemoryOfMessages(t *testing.T) {
	random := seedtest.New(t)
	s, _, ticket := open(t)
	acknowledge(t, s)
	all := batch(t, 0, 20_000)
	var pieces []arrow.RecordBatch
	total := int64(0)
	for total < 400_000 {
		lo := random.Int64N(all.NumRows())
		hi := min(all.NumRows(), lo+random.Int64N(1<<random.IntN(15)))
		pieces = append(pieces, all.NewSlice(lo, hi))
		total += hi - lo
	}
	in := &stream{ctx: t.Context(), messages: write(t, command(ticket, 2, 1), pieces...)}
	if err := s.Receive(in); err != nil {
		t.Fatal(err)
	}
	var r protocol.PutResult
	if err := json.Unmarshal(in.result.AppMetadata, &r); err != nil {
		t.Fatal(err)
	}
	s.Publish(peer.Publish{ID: "put-1", As: peer.Publication{Fingerprint: "f"}, Parts: []protocol.PutPart{r.PutPart}})
	held := s.Find("put-1")
	content := held.Layout.NewContent()
	for got, err := range held.Rows.Records(held.Layout.All(), 0, total) {
		if err != nil {
			t.Fatal(err)
		}
		content.Add(got)
	}
	if sum := content.Sum(); hex.EncodeToString(sum[:]) != r.Hash || content.Rows() != total {
		t.Errorf("%d rows of other content than the %d that were received", content.Rows(), total)
	}
	if in.reused < len(pieces)/8 {
		t.Errorf("%d of %d messages were received in memory of earlier ones", in.reused, len(pieces))
	}
}

func TestTheLimitOfAWriter(t *testing.T) {
	signer := protocol.NewSigner([]byte("key"))
	budget := offheap.NewBudget(1 << 30).Each(streamMemory + 1<<19)
	s := New(Config{Node: 1, Budget: budget, Signer: signer, Log: slog.New(slog.DiscardHandler), Gone: func(string) {}})
	acknowledge(t, s)
	put := func(id, writer string) error {
		s.Open(peer.Put{ID: id, Name: "a", Writer: writer, Parts: 4, Nodes: 2, Schema: rows.SchemaHeader(schema)})
		ticket, err := signer.Sign(protocol.PutTicket{Put: id, Parts: 4, Nodes: 2})
		if err != nil {
			t.Fatal(err)
		}
		return s.Receive(&stream{ctx: t.Context(), messages: write(t, command(ticket, 2, 1), batch(t, 0, 5000))})
	}
	for _, writer := range []string{"team-a/etl", ""} {
		refused, puts := error(nil), 0
		for ; refused == nil && puts < 100; puts++ {
			refused = put(fmt.Sprint(writer, puts), writer)
		}
		if want := "all that " + cmp.Or(writer, "clients without a name") + " may have put: drop"; puts < 2 || status.Code(refused) != codes.ResourceExhausted || !strings.Contains(refused.Error(), want) {
			t.Errorf("put %d of %q: %v, want ResourceExhausted with %q", puts, writer, refused, want)
		}
		if err := put("b"+writer, "team-b/etl"); err != nil {
			t.Errorf("of another writer: %v", err)
		}
		s.Unput("b" + writer)
		s.Unput(fmt.Sprint(writer, 0))
		if err := put("again"+writer, writer); err != nil {
			t.Errorf("after one of the puts of %q was freed: %v", writer, err)
		}
	}
	s.Close()
	if budget.Used() != 0 || budget.Of("team-a/etl", "").Used() != 0 {
		t.Errorf("%d bytes are in use after everything was freed", budget.Used())
	}
}

func TestNothingStaysOfABrokenStream(t *testing.T) {
	s, budget, ticket := open(t)
	used := budget.Used()
	in := &stream{ctx: t.Context(), messages: write(t, command(ticket, 2, 1), batch(t, 0, 50_000), batch(t, 0, 100)), broken: true}
	if err := s.Receive(in); status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	if inventory := s.Inventory(); len(inventory[0].Parts) != 0 || budget.Used() != used {
		t.Errorf("%+v, %d bytes in use, %d before", inventory, budget.Used(), used)
	}
}

// TestMemoryOfParts compares the memory that many small parts take with what is reserved for them.
func TestMemoryOfParts(t *testing.T) {
	s, budget, _ := open(t)
	acknowledge(t, s)
	const parts = 2000
	s.Open(peer.Put{ID: "put-2", Name: "b", Parts: parts, Nodes: 1, Schema: rows.SchemaHeader(schema)})
	signed, err := s.cfg.Signer.Sign(protocol.PutTicket{Put: "put-2", Parts: 2 * parts, Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, used := heap(), budget.Used()
	messages := write(t, "", batch(t, 0, 1))
	for n := range parts {
		put1(t, s, append([][]byte{write(t, command(signed, parts+n, 1), batch(t, n, n+1))[0]}, messages[1:]...))
	}
	var rows int64
	for _, attempts := range s.puts["put-2"].parts {
		rows += attempts[0].Bytes
	}
	takes, says := heap()-before, budget.Used()-used-rows
	if takes > says || says > 2*takes {
		t.Errorf("%d parts take %d bytes besides their rows, and %d are reserved: want at least as much and at most twice", parts, takes, says)
	}
	s.Unput("put-2")
	s.Unput("put-1")
	if budget.Used() != 0 {
		t.Errorf("%d bytes are in use after everything was freed", budget.Used())
	}
}

func TestNothingStaysOfAPanic(t *testing.T) {
	s, budget, ticket := open(t)
	used := budget.Used()
	rows := batch(t, 0, 50_000)
	in := &stream{ctx: t.Context(), messages: write(t, command(ticket, 2, 1), rows, rows, rows, rows), panics: true} // more than a chunk
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		if budget.Used() != used {
			t.Errorf("%d bytes in use, %d before", budget.Used(), used)
		}
	}()
	_ = s.Receive(in)
}

func TestRefused(t *testing.T) {
	s, budget, ticket := open(t)
	used := budget.Used()
	other := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	wrong, _, err := array.RecordFromJSON(memory.DefaultAllocator, other, strings.NewReader(`[{"n":1}]`))
	if err != nil {
		t.Fatal(err)
	}
	good := batch(t, 0, 10)
	text := bytes.Replace(write(t, command(ticket, 2, 1), good)[1], []byte("ü"), []byte{0xff, 0xfe}, 1)
	for name, c := range map[string]struct {
		messages [][]byte
		code     codes.Code
		says     string
	}{
		"no message":            {nil, codes.InvalidArgument, "first one has the command"},
		"a changed ticket":      {write(t, command("A"+ticket[1:], 2, 1), good), codes.Unauthenticated, "ticket"},
		"another node's part":   {write(t, command(ticket, 1, 1), good), codes.FailedPrecondition, "data node 0"},
		"no such part":          {write(t, command(ticket, 4, 1), good), codes.InvalidArgument, "below 4"},
		"an unknown field":      {write(t, `{"v":1,"kind":"put","x":1}`, good), codes.InvalidArgument, "x"},
		"another version":       {write(t, `{"v":2,"kind":"put"}`, good), codes.InvalidArgument, "v: 2"},
		"other columns":         {write(t, command(ticket, 2, 1), wrong), codes.InvalidArgument, "1 columns"},
		"rows before schema":    {[][]byte{firstOf(t, command(ticket, 2, 1)), write(t, "", good)[1]}, codes.InvalidArgument, "before the schema"},
		"only a command":        {[][]byte{firstOf(t, command(ticket, 2, 1))}, codes.InvalidArgument, "no schema"},
		"cut off":               {write(t, command(ticket, 2, 1), good)[:2], codes.InvalidArgument, "cut off"},
		"cut off in between":    {slices.Delete(write(t, command(ticket, 2, 1), good, good), 1, 2), codes.InvalidArgument, "10 rows came, the last message says 20"},
		"text that is no UTF-8": {[][]byte{write(t, command(ticket, 2, 1), good)[0], text}, codes.InvalidArgument, `column "s"`},
	} {
		err := s.Receive(&stream{ctx: t.Context(), messages: c.messages})
		if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if budget.Used() != used {
		t.Errorf("%d bytes in use, %d before", budget.Used(), used)
	}
	full := New(Config{Node: 1, Budget: offheap.NewBudget(1 << 20), Signer: s.cfg.Signer, Log: s.cfg.Log, Gone: s.cfg.Gone})
	full.Open(peer.Put{ID: "put-1", Parts: 4, Nodes: 2, Schema: rows.SchemaHeader(schema)})
	if err := full.Receive(&stream{ctx: t.Context(), messages: write(t, command(ticket, 2, 1), good)}); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "needed") {
		t.Errorf("without memory: %v", err)
	}
}

func firstOf(t *testing.T, command string) []byte {
	t.Helper()
	raw, err := proto.Marshal(&flight.FlightData{FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)}})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestDamagedSchemas damages every byte of a schema.
func TestDamagedSchemas(t *testing.T) {
	header := rows.SchemaHeader(schema)
	for i := range header {
		for _, by := range []byte{0xff, 0x01, 0x80} {
			damaged := slices.Clone(header)
			damaged[i] ^= by
			_, _ = incoming.Layout(damaged)
		}
	}
	if layout, err := incoming.Layout(header); err != nil || !layout.Schema().Equal(schema) {
		t.Errorf("%v, error %v", layout, err)
	}
}
