// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/files"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// asHead is the environment variable with the configuration of a head or a data node that this program is to run as.
const asHead = "DATACACHE_SCALE_HEAD"

// config configures the process of a head or a data node.
type config struct {
	Nodes, Splits int
	Away          bool  // the table can't be planned: only data nodes have the plan
	Memory        int64 // of a head, for clients; 0: as much as outside of tests

	// Endpoint is the URL of a lake, whose table, at Metadata, or Folder is cached instead of a made up one; empty: none.
	Endpoint, Metadata, Folder string

	// Join is the address of a head that the process joins as data node number Index; empty: it is a head.
	Join  string
	Index int
}

// Access keys of the processes at a lake.
const headKey, nodeKey = "head", "node"

// open returns what is cached.
func (c config) open() (source.Source, *objstore.Store) {
	s3 := objstore.S3{Endpoint: c.Endpoint, Region: "us-east-1", AccessKeyID: headKey, SecretAccessKey: "secret"}
	requests := scan.FooterReaders
	if c.Join != "" {
		s3.AccessKeyID, requests = nodeKey, 0
	}
	store := objstore.New(objstore.Config{Concurrency: requests, S3: s3})
	switch {
	case c.Folder != "":
		return &files.Source{Store: store, Location: files.Location{URIs: []string{c.Folder}}}, store
	case c.Metadata != "":
		return &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: c.Metadata}}, store
	}
	return table{c}, store
}

func TestMain(m *testing.M) {
	text := os.Getenv(asHead)
	if text == "" {
		os.Exit(m.Run())
	}
	var c config
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = run(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// rowsOfSplit are the rows of each split of the table.
const rowsOfSplit = 50_000

// table is a source whose plan is made up: splits of equal size, with names, entity tags and lengths as in a table on S3.
type table struct{ config }

func (t table) String() string { return "web/pages" }
func (t table) Request() any   { return t.Splits }

func (t table) Plan(_ context.Context, pin json.RawMessage, by *source.Planning) (*source.Plan, error) {
	if t.Away {
		return nil, errors.New("the store is away")
	}
	p, err := t.Restore(pin)
	for i := range t.Splits {
		x := uint64(i)*0x9E3779B97F4A7C15 + 1
		y := (x ^ x>>31) * 0xBF58476D1CE4E5B9
		p.Splits = append(p.Splits, source.Split{
			File:     fmt.Sprintf("s3://training-data/warehouse/web/pages/data/day=2026-%02d-%02d/%05d-%d-%016x%016x-00001.parquet", i%12+1, i%28+1, i%100000, i%7, x, y),
			FileSize: 512 << 20, Version: fmt.Sprintf("%016x%016x", y, x^y), Sequence: int64(i%100 + 1), Start: 4, Length: 100_000_000 + int64(x%1_000_000),
			Rows: rowsOfSplit, Bytes: rowsOfSplit * 2048, Exact: true,
		})
	}
	p.Splits = by.Cut(p.Splits)
	return p, err
}

func (t table) Restore(json.RawMessage) (*source.Plan, error) {
	return &source.Plan{
		Version:  source.Version{Pin: json.RawMessage(`{"metadata":"x"}`), Selection: json.RawMessage(`{}`)},
		Identity: source.Identity{UUID: "9c12d441-03fe-4693-9a96-a0705ddf69c1", Snapshot: 7},
		Schema:   arrow.NewSchema([]arrow.Field{{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}, {Name: "doc", Type: arrow.PrimitiveTypes.Int64}}, nil),
	}, nil
}

func (t table) Open(context.Context, source.Version, *source.Buffers) (source.Dataset, error) {
	return nil, errors.ErrUnsupported
}

func (t table) Retry(error) source.Retry { return source.Soon }

// budget is that of a data node, or of a head.
func (c config) budget() *offheap.Budget {
	if c.Join != "" {
		return offheap.NewBudget(256 << 20)
	}
	memory := cmp.Or(c.Memory, 128<<20)
	return offheap.NewBudget(memory).Keep(memory / 4)
}

// run runs a head, or a data node, until standard input ends. It prints its two addresses.
func run(c config) error {
	flight, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	cached, store := c.open()
	common := role.Config{
		Flight: flight, HTTP: web, Source: cached, Store: store, Secret: "secret", Budget: c.budget(),
		Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(), Profiles: true, Grace: time.Millisecond,
	}
	var server interface{ Start(context.Context) error }
	if c.Join != "" {
		server, err = node.New(node.Config{Config: common, Index: c.Index, Head: c.Join, Advertise: flight.Addr().String()})
	} else {
		server, err = head.New(head.Config{Config: common, Nodes: c.Nodes, NodeTimeout: 24 * time.Hour}) // stubs that this machine starves don't count as lost
	}
	if err != nil {
		return err
	}
	fmt.Println(flight.Addr(), web.Addr())
	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // this is a process of its own, not a test
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return server.Start(ctx)
}

// process is the head's process, as seen by the measuring one.
type process struct {
	t           *testing.T
	cmd         *exec.Cmd
	in          io.Closer
	flight, web string
}

func startHead(t *testing.T, c config) *process {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.CommandContext(t.Context(), os.Args[0])}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), asHead+"="+string(text)), os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = in
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscan(out, &p.flight, &p.web); err != nil {
		t.Fatalf("the head printed no addresses: %v", err)
	}
	return p
}

func (p *process) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// cpu is the process's user and system time in seconds.
func (p *process) cpu() float64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return (p.number(fields[11]) + p.number(fields[12])) / 100
}

func (p *process) number(text string) float64 {
	p.t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// peak is the most memory that the process has had, in bytes.
func (p *process) peak() float64 {
	p.t.Helper()
	return p.line(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid), "VmHWM:") * 1024
}

// forget makes peak begin anew, and returns the memory that the process has now.
func (p *process) forget() float64 {
	p.t.Helper()
	p.heap() // collects garbage
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0); err != nil {
		p.t.Fatal(err)
	}
	return p.peak()
}

// heap is the heap in use after a collection, in bytes.
func (p *process) heap() float64 {
	p.t.Helper()
	return p.scan(strings.NewReader(p.get("/debug/pprof/heap?gc=1&debug=1")), "# HeapAlloc = ")
}

func (p *process) line(path, begins string) float64 {
	p.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	return p.scan(f, begins)
}

func (p *process) scan(text io.Reader, begins string) float64 {
	p.t.Helper()
	for s := bufio.NewScanner(text); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), begins); ok {
			return p.number(strings.Fields(rest)[0])
		}
	}
	p.t.Fatalf("no line begins with %q", begins)
	return 0
}

func (p *process) get(path string) string {
	p.t.Helper()
	_, text, err := proctest.Request(p.t.Context(), http.DefaultClient, http.MethodGet, "http://"+p.web+path)
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

// await waits until the cache is in a state.
func (p *process) await(state string) {
	p.t.Helper()
	deadline.Eventually(p.t, func() error {
		if status := p.get("/status?nodes=0"); !strings.Contains(status, `"state": "`+state+`"`) {
			return fmt.Errorf("want %s: %s", state, status)
		}
		return nil
	})
}
