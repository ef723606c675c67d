// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// gated is a source whose splits are fetched one at a time, when the test says so.
type gated struct {
	source.Source
	pass chan error // an item for each split: nil, or the error of fetching it

	mu      sync.Mutex
	fetched []int64 // first rows of the splits in the order in which they passed; the table has splits of equal size
}

const gatedRows = 50 // of each split

func (g *gated) Open(ctx context.Context, v source.Version, buffers *source.Buffers) (source.Dataset, error) {
	d, err := g.Source.Open(ctx, v, buffers)
	return gatedDataset{d, g}, err
}

type gatedDataset struct {
	source.Dataset
	*gated
}

func (d gatedDataset) Fetch(ctx context.Context, s source.Split, window int64) (source.Fetched, error) {
	select {
	case err := <-d.pass:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	fetched, err := d.Dataset.Fetch(ctx, s, window)
	if err != nil {
		return nil, err
	}
	for batch, err := range fetched.Batches(ctx, nil) {
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		d.fetched = append(d.fetched, idsOf(batch.RecordBatch)[0])
		d.mu.Unlock()
		batch.Release()
		break
	}
	return fetched, nil
}

// passed are the splits that have passed, by number.
func (g *gated) passed() (splits []int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, first := range g.fetched {
		splits = append(splits, first/gatedRows)
	}
	return splits
}

// beginGated starts a cache of 60 splits, of which nothing is loaded yet.
func beginGated(t *testing.T, nodes int, change func(*Config)) (*running, *Cache, *gated) {
	t.Helper()
	return beginGatedAt(t, icetest.Local(t).Plain("plain", 2, 3, 1000, gatedRows).Metadata(), nodes, change)
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
	g := &gated{pass: make(chan error)}
	r, cache := begin(t, metadata, nodes, func(cfg *Config) {
		change(cfg)
		g.Source = cfg.Source
		cfg.Source = g
	})
	return r, cache, g
}

// early asks for an answer while the cache loads.
func (r *running) early(t *testing.T, command string) *flight.FlightInfo {
	t.Helper()
	for {
		info, err := r.head.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
		if err == nil {
			return info
		}
		if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "failed") {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestEarlyStreams reads epochs and shards while the cache loads: their rows are those of a cache that is Ready, the splits that streams need are
// loaded first, and the first batch does not wait for all of them.
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
			time.Sleep(300 * time.Millisecond) // until the streams have said what they need
			splits := 0
			for ; len(got.firsts()) < len(info.Endpoint) && splits < 60; splits++ {
				g.pass <- nil
				time.Sleep(5 * time.Millisecond)
			}
			t.Logf("the first batches came after %d splits of 60: %v", splits, g.passed())
			want := sequenceOf(t, tt.epoch, whole, info)
			needed := map[int64]bool{}
			for _, row := range want[:tt.first] {
				needed[row/gatedRows] = true
			}
			for i, split := range g.passed()[:min(splits, len(needed))] {
				if i >= 8 && !needed[split] { // those that the nodes began before there were streams
					t.Errorf("split %d was the %d. that was loaded, and the first batch needs only %v", split, i, needed)
				}
			}
			if splits > len(needed)+30 {
				t.Errorf("the first batches came after %d splits, they need %d", splits, len(needed))
			}
			close(g.pass)
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

// TestFirstEpoch loads a table without clients in the order in which an epoch needs its splits, on each node.
func TestFirstEpoch(t *testing.T) {
	first, err := protocol.ParseFirst(`{"seed":8,"epoch":0,"clump":50,"global_batch":100,"tail":"keep"}`)
	if err != nil {
		t.Fatal(err)
	}
	for nodes := 1; nodes <= 2; nodes++ {
		r, cache, g := beginGated(t, nodes, func(cfg *Config) { cfg.FirstEpoch = first })
		for range 60 {
			g.pass <- nil
		}
		for cache.Head().Report().State != protocol.StateReady {
			time.Sleep(time.Millisecond)
		}
		e := epoch.Epoch{Rows: 3000, Seed: 8, Shuffle: true, Clump: 50, GlobalBatch: 100, Tail: "keep"}
		place, next := map[int64]int{}, make([]int, nodes) // of each split in the order of its node
		for _, row := range sequenceOf(t, e, epoch.Share{World: 1, Workers: 1}, nil) {
			if split := row / gatedRows; row%gatedRows == 0 {
				node := split * int64(nodes) / 60
				place[split], next[node] = next[node], next[node]+1
			}
		}
		passed := make([]int, nodes)
		for _, split := range g.passed() {
			node := split * int64(nodes) / 60
			if at := place[split]; at > passed[node]+2*runtime.GOMAXPROCS(0) {
				t.Errorf("%d nodes: split %d was loaded as number %d of its node, the epoch needs it as number %d", nodes, split, passed[node], at)
			}
			passed[node]++
		}
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
				for cache.Head().Report().Splits.Total == 0 {
					time.Sleep(5 * time.Millisecond)
				}
				_, err := r.head.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(`{"v":1,"early":true,` + command)})
				if status.Code(err) != codes.Unavailable || cache.Head().Report().Counted {
					t.Errorf("%v, want UNAVAILABLE as the plan is not counted", err)
				}
				return
			}
			info := r.early(t, `{"v":1,"early":true,`+command)
			got := r.readAll(t, info)
			close(g.pass)
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
	for cache.Head().Report().State != protocol.StateFailed {
		time.Sleep(5 * time.Millisecond)
	}
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
	for range 10 {
		g.pass <- nil
	}
	g.pass <- errors.New("the disk is broken")
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
