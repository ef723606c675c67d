// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// running is a local cache of a table with ids 0..n-1 and a client of its head.
type running struct {
	t      *testing.T
	budget *offheap.Budget
	head   flight.Client
	nodes  map[string]flight.Client
	stop   func() // stops the cache and waits for it

	metrics *ops.Metrics
}

// start serves the table at metadata until the test ends.
func start(t *testing.T, metadata string, nodes int) *running {
	t.Helper()
	return startWith(t, metadata, nodes, func(*Config) {})
}

// startWith is start with a changed configuration.
func startWith(t *testing.T, metadata string, nodes int, change func(*Config)) *running {
	t.Helper()
	r, cache := begin(t, metadata, nodes, change)
	deadline.Until(t, "the cache to be Ready", func() bool {
		s := cache.Head().Report()
		if s.State == protocol.StateFailed {
			t.Fatal(s.Reason)
		}
		return s.State == protocol.StateReady
	})
	return r
}

// begin is startWith for a cache that need not load.
func begin(t *testing.T, metadata string, nodes int, change func(*Config)) (*running, *Cache) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, budget: offheap.NewBudget(1 << 30), nodes: map[string]flight.Client{}, metrics: ops.NewMetrics()}
	ctx, cancel := context.WithCancel(t.Context())
	store := objstore.New(objstore.Config{})
	cfg := Config{Nodes: nodes, Config: role.Config{
		Flight: listener, Budget: r.budget, Store: store,
		Source: &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: metadata}}, Grace: time.Second, Log: slog.New(slog.DiscardHandler), Metrics: r.metrics,
	}}
	change(&cfg)
	cache, err := New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cache.Start(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil // for the cleanup function
	}
	t.Cleanup(r.stop)
	r.head = r.dial(listener.Addr().String())
	return r, cache
}

func (r *running) dial(address string) flight.Client {
	r.t.Helper()
	client, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = client.Close() })
	return client
}

func (r *running) info(command string) *flight.FlightInfo {
	r.t.Helper()
	info, err := r.head.GetFlightInfo(r.t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

func (r *running) node(e *flight.FlightEndpoint) flight.Client {
	address := strings.TrimPrefix(e.Location[0].Uri, "grpc://")
	if r.nodes[address] == nil {
		r.nodes[address] = r.dial(address)
	}
	return r.nodes[address]
}

// ids reads the id column from one endpoint.
func (r *running) ids(e *flight.FlightEndpoint) []int64 {
	r.t.Helper()
	stream, err := r.node(e).DoGet(r.t.Context(), e.Ticket)
	if err != nil {
		r.t.Fatal(err)
	}
	reader, err := flight.NewRecordReader(stream)
	if err != nil {
		r.t.Fatal(err)
	}
	defer reader.Release()
	var ids []int64
	for reader.Next() {
		ids = append(ids, idsOf(reader.RecordBatch())...)
	}
	if err := reader.Err(); err != nil {
		r.t.Fatal(err)
	}
	return ids
}

func idsOf(batch arrow.RecordBatch) []int64 {
	column := batch.Schema().FieldIndices("id")[0]
	return slices.Clone(batch.Column(column).(*array.Int64).Int64Values())
}

func bounds(t *testing.T, info *flight.FlightInfo) protocol.InfoMetadata {
	t.Helper()
	var m protocol.InfoMetadata
	if err := json.Unmarshal(info.AppMetadata, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestShardsAreTheTableInOrder(t *testing.T) {
	table := icetest.Local(t).Plain("plain", 2, 3, 1000, 256)
	r := start(t, table.Metadata(), 3)
	var whole []int64
	for _, e := range r.info(`{"v":1,"kind":"shard","index":0,"total":1}`).Endpoint {
		whole = append(whole, r.ids(e)...)
	}
	want := make([]int64, 3000)
	for i := range want {
		want[i] = int64(i)
	}
	if diff := cmp.Diff(want, whole); diff != "" {
		t.Fatalf("the table is not served in the order it was written:\n%s", diff)
	}
	totals := []int{2, 7, 64}
	if !testing.Short() {
		totals = append(totals, 3001)
	}
	for _, total := range totals {
		var parts []int64
		for i := range total {
			info := r.info(fmt.Sprintf(`{"v":1,"kind":"shard","index":%d,"total":%d,"columns":["text","id"]}`, i, total))
			var ids []int64
			for _, e := range info.Endpoint {
				ids = append(ids, r.ids(e)...)
			}
			if int64(len(ids)) != info.TotalRecords || len(ids) < 3000/total || len(ids) > 3000/total+1 {
				t.Errorf("shard %d of %d has %d rows, announced %d", i, total, len(ids), info.TotalRecords)
			}
			parts = append(parts, ids...)
		}
		if !slices.Equal(parts, whole) {
			t.Errorf("%d shards end to end are not the table", total)
		}
	}
}

// TestEpochs compares the rows that every rank gets, node by node, with a sequence computed row by row.
func TestEpochs(t *testing.T) {
	table := icetest.Local(t).Plain("plain", 2, 2, 997, 300)
	r := start(t, table.Metadata(), 3)
	tests := []struct {
		name  string
		epoch epoch.Epoch
	}{
		{"shuffled rows", epoch.Epoch{Seed: 7, Number: 1, Shuffle: true, Clump: 1, GlobalBatch: 100, Tail: "keep"}},
		{"clumps", epoch.Epoch{Seed: 8, Number: 2, Shuffle: true, Clump: 16, GlobalBatch: 64, Tail: "pad"}},
		{"clumps longer than a batch", epoch.Epoch{Seed: 8, Number: 2, Shuffle: true, Clump: 700, GlobalBatch: 5, Tail: "drop"}},
		{"in order", epoch.Epoch{Clump: 1, GlobalBatch: 333, Tail: "pad"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for rank := range uint64(3) {
				share := epoch.Share{Rank: rank, World: 3, Workers: 1, StartStep: 2}
				info := r.info(fmt.Sprintf(
					`{"v":1,"kind":"epoch","seed":%d,"epoch":%d,"shuffle":%t,"clump":%d,"global_batch":%d,"tail":%q,"rank":%d,"world":3,"start_step":2}`,
					tt.epoch.Seed, tt.epoch.Number, tt.epoch.Shuffle, tt.epoch.Clump, tt.epoch.GlobalBatch, tt.epoch.Tail, rank))
				tt.epoch.Rows = 2 * 997
				want := sequence(t, tt.epoch, share)
				if info.TotalRecords != int64(len(want)) {
					t.Errorf("rank %d: %d rows announced, want %d", rank, info.TotalRecords, len(want))
				}
				r.checkEpoch(t, info, want)
			}
		})
	}
}

// checkEpoch checks that each endpoint sends the rows of want that its node holds, in the order of want.
func (r *running) checkEpoch(t *testing.T, info *flight.FlightInfo, want []int64) {
	t.Helper()
	seen := 0
	for _, e := range info.Endpoint {
		var m protocol.EndpointMetadata
		if err := json.Unmarshal(e.AppMetadata, &m); err != nil {
			t.Fatal(err)
		}
		b := bounds(t, info).Nodes[m.Node]
		var share []int64
		for _, row := range want {
			if row >= b[0] && row < b[1] {
				share = append(share, row)
			}
		}
		got := r.ids(e)
		seen += len(got)
		if diff := cmp.Diff(share, got); diff != "" {
			t.Errorf("node %d of rows %v:\n%s", m.Node, b, diff)
		}
	}
	if seen != len(want) {
		t.Errorf("%d rows came, want %d", seen, len(want))
	}
}

// sequence lists a share's rows with a simple, slow implementation of the order.
func sequence(t *testing.T, e epoch.Epoch, s epoch.Share) []int64 {
	t.Helper()
	clumps := (e.Rows + e.Clump - 1) / e.Clump
	p, err := epoch.NewPermutation(clumps, e.Seed, e.Number)
	if err != nil {
		t.Fatal(err)
	}
	var all, rows []int64
	for i := range clumps {
		c := i
		if e.Shuffle {
			c = p.At(i)
		}
		for row := c * e.Clump; row < min((c+1)*e.Clump, e.Rows); row++ {
			all = append(all, int64(row))
		}
	}
	for step := s.StartStep; step < e.Steps(); step++ {
		first, size := e.Step(step)
		for i := s.Rank * size / s.World; i < (s.Rank+1)*size/s.World; i++ {
			rows = append(rows, all[(first+i)%e.Rows])
		}
	}
	return rows
}

func TestTake(t *testing.T) {
	table := icetest.Local(t).Plain("plain", 2, 2, 500, 100)
	r := start(t, table.Metadata(), 2)
	info := r.info(`{"v":1,"kind":"take","columns":["id"]}`)
	if len(info.Endpoint) != 2 {
		t.Fatalf("%d endpoints, want one a node", len(info.Endpoint))
	}
	for i, e := range info.Endpoint {
		b := bounds(t, info).Nodes[i]
		want := [][]int64{{b[1] - 1, b[0]}, {b[0] + 5, b[0] + 5, b[0] + 5}, {}, {b[0] + 9}}
		got, err := r.take(e, want)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("node %d: %s", i, diff)
		}
		if _, err := r.take(e, [][]int64{{b[1]}}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("row %d is not on this data node", b[1])) {
			t.Errorf("node %d gave a row that it does not hold: %v", i, err)
		}
	}
}

// take requests each list of rows over one exchange and returns the ids of each response.
func (r *running) take(e *flight.FlightEndpoint, lists [][]int64) ([][]int64, error) {
	stream, err := r.node(e).DoExchange(r.t.Context())
	if err != nil {
		return nil, err
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "row", Type: arrow.PrimitiveTypes.Int64}}, nil)
	w := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: e.Ticket.Ticket})
	var reader *flight.Reader
	answers := make([][]int64, 0, len(lists))
	for _, list := range lists {
		builder := array.NewInt64Builder(memory.DefaultAllocator)
		builder.AppendValues(list, nil)
		if err := w.Write(array.NewRecordBatch(schema, []arrow.Array{builder.NewArray()}, int64(len(list)))); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if reader == nil {
			if reader, err = flight.NewRecordReader(stream); err != nil {
				return nil, err
			}
			defer reader.Release()
		}
		if !reader.Next() {
			return answers, reader.Err()
		}
		answers = append(answers, append([]int64{}, idsOf(reader.RecordBatch())...))
	}
	return answers, stream.CloseSend()
}

// TestMemoryComesBack stops a cache with streams that were read, canceled and left unread: all memory must be released.
func TestMemoryComesBack(t *testing.T) {
	table := icetest.Local(t).Plain("plain", 2, 1, 20000, 5000)
	r := start(t, table.Metadata(), 2)
	info := r.info(`{"v":1,"kind":"shard","index":0,"total":1}`)
	used := r.budget.Used()
	if used < info.TotalBytes {
		t.Errorf("%d bytes are counted for a table of %d", used, info.TotalBytes)
	}
	for _, e := range info.Endpoint {
		r.ids(e)
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			if _, err := r.node(e).DoGet(ctx, e.Ticket); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if _, err := r.node(e).DoGet(t.Context(), e.Ticket); err != nil { // never read
			t.Fatal(err)
		}
	}
	r.stop()
	deadline.Eventually(t, func() error {
		if used := r.budget.Used(); used != 0 {
			return fmt.Errorf("%d bytes are still counted after the end", used)
		}
		return nil
	})
}

func TestTablesWithoutRows(t *testing.T) {
	warehouse := icetest.Local(t)
	for name, table := range map[string]*icetest.Table{"no snapshot": warehouse.NoSnapshot("none"), "empty": warehouse.Empty("empty")} {
		t.Run(name, func(t *testing.T) {
			r := start(t, table.Metadata(), 2)
			info := r.info(`{"v":1,"kind":"shard","index":0,"total":1}`)
			if info.TotalRecords != 0 || info.TotalBytes != 0 || len(info.Endpoint) != 0 {
				t.Errorf("%d rows, %d bytes, %d endpoints", info.TotalRecords, info.TotalBytes, len(info.Endpoint))
			}
			if n := len(r.info(`{"v":1,"kind":"take"}`).Endpoint); n != 2 {
				t.Errorf("%d endpoints to take from, want one a node", n)
			}
		})
	}
}

// A panic says "see its log": the log must have it, beside warnings, and nothing that the cache's state tells.
func TestQuiet(t *testing.T) {
	var text strings.Builder
	log := slog.New(quiet{slog.NewTextHandler(&text, nil)})
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelWarn, slog.LevelError, transport.LevelPanic} {
		log.Log(t.Context(), level, "a message")
	}
	if got := text.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "level=ERROR+1") {
		t.Errorf("passed on %q, want the warning and the panic", got)
	}
}
