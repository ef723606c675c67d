// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// gated is a source whose splits are fetched when the test lets them.
type gated struct {
	source.Source
	all chan struct{} // closed: every split is let through

	mu    sync.Mutex
	gates map[int64]*gate // by number of the split
}

// gate is closed for one split until opened is.
type gate struct {
	opened chan struct{}
	err    error         // of fetching the split
	passed chan struct{} // closed when the split has passed
}

const (
	gatedSplits = 60
	gatedRows   = 50 // of each split
)

// gate returns the gate of a split.
func (g *gated) gate(split int64) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[split] == nil {
		g.gates[split] = &gate{opened: make(chan struct{}), passed: make(chan struct{})}
	}
	return g.gates[split]
}

// let opens the gates of splits, which are then fetched, or fail with err.
func (g *gated) let(err error, splits ...int64) {
	for _, split := range splits {
		opened := g.gate(split)
		opened.err = err
		close(opened.opened)
	}
}

// letInOrder lets a node's splits pass in this order: each when it is among those that the node loads at a time if it loads them in this order.
func (g *gated) letInOrder(ctx context.Context, order []int64) {
	atATime := min(2*runtime.GOMAXPROCS(0), len(order))
	g.let(nil, order[:atATime]...)
	for i, next := range order[atATime:] {
		select {
		case <-g.gate(order[i]).passed:
			g.let(nil, next)
		case <-ctx.Done():
			return
		}
	}
}

func (g *gated) Open(ctx context.Context, v source.Version, buffers *source.Buffers) (source.Dataset, error) {
	d, err := g.Source.Open(ctx, v, buffers)
	return gatedDataset{d, g}, err
}

type gatedDataset struct {
	source.Dataset
	*gated
}

func (d gatedDataset) Fetch(ctx context.Context, s source.Split, window int64) (source.Fetched, error) {
	fetched, err := d.Dataset.Fetch(ctx, s, window)
	if err != nil {
		return nil, err
	}
	if err := d.await(ctx, fetched); err != nil {
		fetched.Close()
		return nil, err
	}
	return fetched, nil
}

// await waits at the gate of a split.
func (d gatedDataset) await(ctx context.Context, fetched source.Fetched) error {
	split := int64(0)
	for batch, err := range fetched.Batches(ctx, nil) {
		if err != nil {
			return err
		}
		split = idsOf(batch.RecordBatch)[0] / gatedRows
		batch.Release()
		break
	}
	gate := d.gate(split)
	select {
	case <-d.all:
		return nil
	case <-gate.opened:
		close(gate.passed)
		return gate.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginGated starts a cache of gatedSplits, of which nothing is loaded yet.
func beginGated(t *testing.T, nodes int, change func(*Config)) (*running, *Cache, *gated) {
	t.Helper()
	return beginGatedAt(t, icetest.Local(t).Plain("plain", 2, 3, gatedSplits*gatedRows/3, gatedRows).Metadata(), nodes, change)
}

// inMemory and inFiles are where a cache has its rows.
func inMemory(*testing.T) func(*Config) { return func(*Config) {} }
func inFiles(t *testing.T) func(*Config) {
	dir := t.TempDir()
	return func(cfg *Config) {
		cfg.Spill = func(node int) (*spill.Dir, error) { return spill.New(dir, node, 0), nil }
	}
}

var places = map[string]func(*testing.T) func(*Config){"memory": inMemory, "files": inFiles}

// beginGatedAt is beginGated for another table and configuration.
func beginGatedAt(t *testing.T, metadata string, nodes int, change func(*Config)) (*running, *Cache, *gated) {
	t.Helper()
	g := &gated{all: make(chan struct{}), gates: map[int64]*gate{}}
	r, cache := begin(t, metadata, nodes, func(cfg *Config) {
		change(cfg)
		g.Source = cfg.Source
		cfg.Source = g
	})
	return r, cache, g
}

// early asks for an answer while the cache loads.
func (r *running) early(t *testing.T, command string) (info *flight.FlightInfo) {
	t.Helper()
	deadline.Eventually(t, func() (err error) {
		info, err = r.head.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
		if err != nil && (status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "failed")) {
			t.Fatal(err)
		}
		return err
	})
	return info
}

// waitForSplits is how many streams of this process have said which splits they need, and wait for the first of them.
func waitForSplits() int {
	stacks := make([]byte, 4<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("load.(*Early).await("))
}

// apart is how many positions of a stream ask for their splits with the same priority.
const apart = 8

// TestEarlyStreams reads epochs and shards while the cache loads: their rows are those of a cache that is Ready, the splits that streams need are
// loaded first, and the first batch does not wait for others.
func TestEarlyStreams(t *testing.T) {
	whole := epoch.Share{World: 1, Workers: 1}
	tests := []struct {
		name    string
		command string
		epoch   epoch.Epoch
		first   int // rows that the first batches need
	}{
		{"shuffled", `"kind":"epoch","seed":7,"epoch":1,"shuffle":true,"global_batch":10,"tail":"keep","rank":0,"world":1`,
			epoch.Epoch{Rows: 3000, Seed: 7, Number: 1, Shuffle: true, Clump: 1, GlobalBatch: 10, Tail: "keep"}, 10},
		{"windows", `"kind":"epoch","seed":8,"epoch":0,"shuffle":true,"clump":50,"window":4,"global_batch":100,"tail":"keep","rank":0,"world":1`,
			epoch.Epoch{Rows: 3000, Seed: 8, Shuffle: true, Clump: 50, Window: 4, GlobalBatch: 100, Tail: "keep"}, 100},
		{"in order", `"kind":"epoch","seed":0,"epoch":0,"shuffle":false,"global_batch":100,"tail":"keep","rank":0,"world":1`,
			epoch.Epoch{Rows: 3000, GlobalBatch: 100, Tail: "keep"}, 100},
		{"shard", `"kind":"shard","index":0,"total":1`, epoch.Epoch{Rows: 3000, GlobalBatch: 3000, Tail: "keep"}, 3000},
		{"split", `"kind":"shard","index":0,"total":1,"split":{"seed":1,"of":10,"from":2,"to":3,"shuffle":false}`, epoch.Epoch{}, 300},
	}
	for i := range 2 * len(tests) {
		tt, place := tests[i/2], []string{"memory", "files"}[i%2]
		t.Run(tt.name+" in "+place, func(t *testing.T) {
			r, cache, g := beginGated(t, 1, places[place](t))
			command := fmt.Sprintf(`{"v":1,%s}`, tt.command)
			info := r.early(t, fmt.Sprintf(`{"v":1,"early":true,%s}`, tt.command))
			if _, err := r.head.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)}); status.Code(err) != codes.Unavailable {
				t.Errorf("without early: %v, want UNAVAILABLE", err)
			}
			if s := cache.Head().Report(); !s.Counted || s.State != protocol.StateLoading {
				t.Errorf("state %s, counted %t: want Loading and true", s.State, s.Counted)
			}
			if m := bounds(t, info); m.Loaded == nil || *m.Loaded != 0 {
				t.Errorf("loaded %v, want 0", m.Loaded)
			}
			got := r.readAll(t, info)
			deadline.Until(t, "the streams to have said what they need", func() bool { return waitForSplits() == len(info.Endpoint) })
			want := sequenceOf(t, tt.epoch, whole, info)
			letIn := map[int64]bool{}
			for split := range min(int64(2*runtime.GOMAXPROCS(0)), gatedSplits) { // those that the node began before there were streams
				letIn[split] = true
			}
			for _, row := range want[:min(tt.first+apart-tt.first%apart, len(want))] {
				letIn[row/gatedRows] = true
			}
			g.let(nil, slices.Collect(maps.Keys(letIn))...)
			deadline.Until(t, fmt.Sprintf("the first batches, which need no splits but %v", letIn), func() bool { return len(got.firsts()) == len(info.Endpoint) })
			close(g.all)
			got.wait(t)
			r.checkEpoch(t, r.early(t, command), want)
			for node, ids := range got.rows {
				if b := bounds(t, info).Nodes[node]; !slices.Equal(ids, within(want, b[0], b[1])) {
					t.Errorf("node %d sent other rows than one that is loaded", node)
				}
			}
		})
	}
}

// TestFirstEpoch loads a table without clients in the order in which an epoch needs its splits, on each node: the one that is needed next is
// always among those that the node loads at a time.
func TestFirstEpoch(t *testing.T) {
	first, err := protocol.ParseFirst(`{"seed":8,"epoch":0,"clump":50,"global_batch":100,"tail":"keep"}`)
	if err != nil {
		t.Fatal(err)
	}
	for nodes := 1; nodes <= 2; nodes++ {
		r, cache, g := beginGated(t, nodes, func(cfg *Config) { cfg.FirstEpoch = first })
		e := epoch.Epoch{Rows: gatedSplits * gatedRows, Seed: 8, Shuffle: true, Clump: gatedRows, GlobalBatch: 100, Tail: "keep"}
		orders := make([][]int64, nodes) // of the splits of each node
		for _, row := range sequenceOf(t, e, epoch.Share{World: 1, Workers: 1}, nil) {
			if split := row / gatedRows; row%gatedRows == 0 {
				node := split * int64(nodes) / gatedSplits
				orders[node] = append(orders[node], split)
			}
		}
		for _, order := range orders {
			go g.letInOrder(t.Context(), order)
		}
		deadline.Until(t, fmt.Sprintf("%d nodes to load their splits, which they need in the orders %v", nodes, orders),
			func() bool { return cache.Head().Report().State == protocol.StateReady })
		r.stop()
	}
}

// TestEarlyRowsOfCountedPlans reads tables with deletes and filters while they load, if planning can count their rows: the same rows as when they
// are loaded. Plans that it can't count are not answered.
func TestEarlyRowsOfCountedPlans(t *testing.T) {
	w := icetest.Local(t)
	tests := map[string]struct {
		table   *icetest.Table
		filter  string
		counted bool
		rows    int64
	}{
		"deleted positions": {w.Deleted("positions", 2), "", true, 261},
		"deletion vectors":  {w.Deleted("vectors", 3), "id < 1000", true, 261},
		"a proven filter":   {w.Plain("proven", 2, 3, 100, 25), "id >= 100", true, 200},
		"deleted values":    {w.EqualDeleted("values", 2), "", false, 0},
		"a filter":          {w.Deleted("filtered", 2), "category = 'a'", false, 0},
	}
	const command = `"kind":"epoch","seed":7,"epoch":1,"shuffle":true,"global_batch":10,"tail":"keep","rank":0,"world":1}`
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, cache, g := beginGatedAt(t, tt.table.Metadata(), 2, func(cfg *Config) { cfg.Source.(*iceberg.Source).Selection.Filter = tt.filter })
			if !tt.counted {
				deadline.Until(t, "the plan", func() bool { return cache.Head().Report().Splits.Total > 0 })
				_, err := r.head.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(`{"v":1,"early":true,` + command)})
				if status.Code(err) != codes.Unavailable || cache.Head().Report().Counted {
					t.Errorf("%v, want UNAVAILABLE as the plan is not counted", err)
				}
				return
			}
			info := r.early(t, `{"v":1,"early":true,`+command)
			got := r.readAll(t, info)
			close(g.all)
			got.wait(t)
			ready := r.early(t, `{"v":1,`+command)
			if rows := ready.TotalRecords; info.TotalRecords != rows || rows != tt.rows {
				t.Errorf("%d rows early, and %d when loaded, want %d", info.TotalRecords, rows, tt.rows)
			}
			for i, e := range ready.Endpoint {
				if want := r.ids(e); !slices.Equal(got.rows[i], want) {
					t.Errorf("node %d sent %v early, and %v when loaded", i, got.rows[i], want)
				}
			}
		})
	}
}

// miscounting is a source that counts too many deleted rows.
type miscounting struct{ source.Source }

func (m miscounting) Plan(ctx context.Context, pin json.RawMessage, by *source.Planning) (*source.Plan, error) {
	p, err := m.Source.Plan(ctx, pin, by)
	if err == nil {
		p.Splits[3].Deleted++
	}
	return p, err
}

// TestMiscountedRows checks that a load fails, before rows are sent, if a split has other rows than planning has counted.
func TestMiscountedRows(t *testing.T) {
	_, cache := begin(t, icetest.Local(t).Deleted("t", 2).Metadata(), 1, func(cfg *Config) { cfg.Source = miscounting{cfg.Source} })
	deadline.Until(t, "the cache to be Failed", func() bool { return cache.Head().Report().State == protocol.StateFailed })
	if reason := cache.Head().Report().Reason; !strings.Contains(reason, "rows are left of it, planned were") {
		t.Errorf("failed with %q", reason)
	}
}

// TestEarlyStreamsOfAFailedLoad checks that a failed load ends the streams that wait with the reason.
func TestEarlyStreamsOfAFailedLoad(t *testing.T) {
	for place, where := range places {
		t.Run(place, func(t *testing.T) { checkFailedLoad(t, where(t)) })
	}
}

func checkFailedLoad(t *testing.T, where func(*Config)) {
	t.Helper()
	r, _, g := beginGated(t, 2, where)
	info := r.early(t, `{"v":1,"early":true,"kind":"shard","index":0,"total":1}`)
	got := r.readAll(t, info)
	for split := range int64(gatedSplits - 1) { // the last one does not pass, so that no stream has all of its rows
		if split != 5 {
			g.let(nil, split)
		}
	}
	g.let(errors.New("the disk is broken"), 5)
	got.end.Wait()
	for node, err := range got.errs {
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the cache failed: data node") || !strings.Contains(err.Error(), "the disk is broken") {
			t.Errorf("the stream of node %d ended with %v, want UNAVAILABLE and the reason of the failure", node, err)
		}
	}
	if len(got.errs) != 2 {
		t.Errorf("%d streams failed, want 2", len(got.errs))
	}
}

// collected are the rows that the streams of an answer have sent so far.
type collected struct {
	end  sync.WaitGroup
	mu   sync.Mutex
	rows map[int][]int64 // by node
	errs map[int]error
}

// readAll reads the streams of an answer in the background.
func (r *running) readAll(t *testing.T, info *flight.FlightInfo) *collected {
	t.Helper()
	c := &collected{rows: map[int][]int64{}, errs: map[int]error{}}
	for i, e := range info.Endpoint {
		stream, err := r.node(e).DoGet(t.Context(), e.Ticket)
		if err != nil {
			t.Fatal(err)
		}
		c.end.Go(func() {
			reader, err := flight.NewRecordReader(stream)
			if err == nil {
				defer reader.Release()
				for reader.Next() {
					c.mu.Lock()
					c.rows[i] = append(c.rows[i], idsOf(reader.RecordBatch())...)
					c.mu.Unlock()
				}
				err = reader.Err()
			}
			if err != nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.errs[i] = err
			}
		})
	}
	return c
}

// firsts are the nodes that have sent rows.
func (c *collected) firsts() (nodes []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for node := range c.rows {
		nodes = append(nodes, node)
	}
	return nodes
}

// wait waits for the end of all streams.
func (c *collected) wait(t *testing.T) {
	t.Helper()
	c.end.Wait()
	for node, err := range c.errs {
		t.Errorf("node %d: %v", node, err)
	}
}

// sequenceOf lists the rows of an answer: those of an epoch, or 300 of a split in order.
func sequenceOf(t *testing.T, e epoch.Epoch, s epoch.Share, info *flight.FlightInfo) (rows []int64) {
	t.Helper()
	if e.Rows > 0 {
		c, err := epoch.NewCursor(e, s)
		if err != nil {
			t.Fatal(err)
		}
		var runs [1]epoch.Run
		for n, _ := c.Next(runs[:], 1); n > 0; n, _ = c.Next(runs[:], 1) {
			rows = append(rows, int64(runs[0].First))
		}
		return rows
	}
	for i := range info.TotalRecords {
		rows = append(rows, 600+i)
	}
	return rows
}

func within(rows []int64, lo, hi int64) (own []int64) {
	for _, row := range rows {
		if lo <= row && row < hi {
			own = append(own, row)
		}
	}
	return own
}
