// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
)

const (
	headAddr     = "10.0.0.1:50051"
	rivalAddr    = "10.0.3.1:50051" // of a second process with the index of a data node
	intruderAddr = "10.0.3.2:50051" // of a process that does not know the secret
	secret       = "soak"
	// nodeMemory is the memory limit of each data node.
	nodeMemory = 64 << 20
)

func nodeAddr(i int) string { return fmt.Sprintf("10.0.0.%d:50051", 10+i) }

// world is one cache with its store and network. Its methods are not safe for concurrent use, unless stated otherwise.
type world struct {
	t        *testing.T
	ctx      context.Context
	net      *network
	store    *store
	where    *host // the store's
	retry    objstore.Retry
	head     *process
	past     []*process // processes that were killed, stopped, or replaced
	web      *http.Server
	log      *journal
	seen     ready
	rivals   map[int]*process // second processes with the index of a running data node
	spared   bool             // data nodes must not be ended any more
	tampered bool             // the store serves forged files, so the cache may fail
	enemy    *hostile

	mu    sync.Mutex
	nodes []*process
}

// ready is the dataset with which the cache was last Ready.
type ready struct {
	snapshot int64
	holders  []*process
}

// nodesNow returns the current data nodes. It is safe for concurrent use.
func (w *world) nodesNow() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.nodes)
}

// process is a head or a data node that was started.
type process struct {
	name   string
	host   *host
	began  time.Time
	cancel context.CancelFunc
	down   bool            // killed or stopped, and not restarted
	downAt time.Time       // when
	ended  chan struct{}   // closed when Start has returned
	err    error           // the error that Start returned
	head   *head.Head      // if it is a head
	node   *node.Node      // if it is a data node
	budget *offheap.Budget // likewise
}

// running reports whether the process has not ended. It is safe for concurrent use.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// newWorld makes a store and a network, without processes.
func newWorld(ctx context.Context, t *testing.T, s *store, n *network, nodes int, log *journal) *world {
	t.Helper()
	at := netip.MustParseAddrPort(storeAddr)
	w := &world{t: t, ctx: ctx, net: n, store: s, nodes: make([]*process, nodes), where: n.host(at.Addr()), log: log, rivals: map[int]*process{}}
	listener, err := w.where.listen(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	w.web = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { _ = w.web.Serve(listener) }() // until end
	return w
}

// start creates a host at an address for a process and runs the process.
func (w *world) start(name, address string, run func(p *process) (func(context.Context) error, error)) *process {
	w.t.Helper()
	at := netip.MustParseAddrPort(address)
	p := &process{name: name, host: w.net.host(at.Addr()), began: time.Now(), ended: make(chan struct{})}
	start, err := run(p)
	if err != nil {
		w.t.Fatalf("start %s: %v", name, err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	p.cancel = cancel
	go func() {
		defer close(p.ended)
		p.err = start(ctx)
	}()
	return p
}

func (w *world) startHead() {
	w.t.Helper()
	w.head = w.start("head", headAddr, func(p *process) (func(context.Context) error, error) {
		listener, err := p.host.listen(50051)
		if err != nil {
			return nil, err
		}
		table := w.table(p)
		p.head, err = head.New(head.Config{Nodes: len(w.nodes), TicketTTL: ticketTTL, Config: role.Config{
			Flight: listener, Budget: offheap.NewBudget(256 << 20), Store: table.Store, Source: table,
			Secret: secret, Grace: 2 * time.Second, Log: w.log.logger("head"), Metrics: ops.NewMetrics(),
		}})
		if err != nil {
			return nil, err
		}
		return p.head.Start, nil
	})
	w.displace()
}

// displace clears the expected holder of every node index that a rival process also claims. Unless the cache is Ready, the head does not
// know which of the two was first, and accepts the one that joins first.
func (w *world) displace() {
	if w.head.head.Report().State == protocol.StateReady {
		return
	}
	for i, rival := range w.rivals {
		if i < len(w.seen.holders) && rival.running() {
			w.seen.holders[i] = nil
		}
	}
}

func (w *world) startNode(i int) {
	p := w.nodeAt(i, nodeAddr(i), secret)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[i] = p
}

// nodeAt starts a process as data node i at an address.
func (w *world) nodeAt(i int, address, secret string) *process {
	w.t.Helper()
	name := fmt.Sprintf("node %d", i)
	return w.start(name, address, func(p *process) (func(context.Context) error, error) {
		listener, err := p.host.listen(50051)
		if err != nil {
			return nil, err
		}
		p.budget = offheap.NewBudget(nodeMemory)
		table := w.table(p)
		p.node, err = node.New(node.Config{Index: i, Head: headAddr, Advertise: address, Workers: 2, Dial: p.host.dial, Config: role.Config{
			Flight: listener, Budget: p.budget, Store: table.Store, Source: table,
			Secret: secret, Grace: 2 * time.Second, Log: w.log.logger(name), Metrics: ops.NewMetrics(),
		}})
		if err != nil {
			return nil, err
		}
		return p.node.Start, nil
	})
}

// table returns the world's table as the source of a process.
func (w *world) table(p *process) *iceberg.Source {
	return &iceberg.Source{Store: p.host.client(w.retry), Location: iceberg.Location{Metadata: "s3://" + bucketName + "/t"}}
}

// kill ends a process as SIGKILL does or, with vanish, as a crash of its machine does.
func (w *world) kill(p *process, vanish bool) {
	p.down, p.downAt = true, time.Now()
	p.host.kill(vanish)
	p.cancel()
	w.past = append(w.past, p)
}

// stop ends a process as SIGTERM does and waits for it.
func (w *world) stop(p *process) {
	p.down, p.downAt = true, time.Now()
	p.cancel()
	<-p.ended
	p.host.kill(false)
	w.past = append(w.past, p)
}

// end ends all processes and checks what must hold then.
func (w *world) end() {
	w.t.Helper()
	for _, p := range append(w.nodes, w.head) {
		w.stop(p)
	}
	_ = w.web.Close()
	for _, p := range w.past {
		<-p.ended
		if p.budget != nil && p.budget.Used() != 0 {
			w.t.Errorf("%s has %d bytes reserved after its end", p.name, p.budget.Used())
		}
	}
	w.net.end()
}

// journal records the events of a schedule. It is safe for concurrent use.
type journal struct {
	began time.Time

	mu    sync.Mutex
	lines []string
}

// note adds a line with the time since the start of the schedule.
func (j *journal) note(format string, values ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	line := fmt.Sprintf("%10.3f ", time.Since(j.began).Seconds()) + fmt.Sprintf(format, values...)
	j.lines = append(j.lines, line)
}

// Write implements io.Writer for lines of a process's log.
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf("%10.3f ", time.Since(j.began).Seconds())+string(p[:len(p)-1]))
	return len(p), nil
}

// String is the whole journal.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "\n")
}

func (j *journal) logger(name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})).With("of", name)
}

// process returns a process by number: data nodes from 0 on, then the head.
func (w *world) process(i int) *process {
	if i == len(w.nodes) {
		return w.head
	}
	return w.nodes[i]
}

func (w *world) hostOf(i int) *host { return w.process(i).host }

func (w *world) killNumber(i int, vanish bool) {
	if p := w.process(i); !p.down && !w.spares(i) {
		w.kill(p, vanish)
	}
}

func (w *world) stopNumber(i int) {
	if p := w.process(i); !p.down && !w.spares(i) {
		w.stop(p)
	}
}

// spares reports whether a process must not be ended any more. If the head restarted after the cache failed because of forged files,
// it could not detect them any more.
func (w *world) spares(i int) bool { return w.spared && (i < len(w.nodes) || w.tampered) }

// allLoaded reports whether every data node is running and holds its rows.
func (w *world) allLoaded() bool {
	return w.head.head.Report().State == protocol.StateReady && !slices.ContainsFunc(w.nodes, func(p *process) bool { return p.down })
}

// startNumber starts a process that is down, by its number.
func (w *world) startNumber(i int) {
	switch p := w.process(i); {
	case !p.down:
	case i == len(w.nodes):
		w.startHead()
	default:
		w.startNode(i)
	}
}

// supervise restarts processes that ended by themselves.
func (w *world) supervise() {
	for i := range len(w.nodes) + 1 {
		if p := w.process(i); !p.down && !p.running() {
			w.log.note("%s ended: %v", p.name, p.err)
			w.stop(p)
			w.startNumber(i)
		}
	}
}

// check checks invariants of the head's report.
func (w *world) check() {
	w.t.Helper()
	s := w.head.head.Report()
	if s.State == protocol.StateFailed && (!w.tampered || !strings.Contains(s.Reason, "holds other rows")) {
		w.t.Errorf("the cache failed: %s", s.Reason)
	}
	if s.State != protocol.StateReady {
		return
	}
	holds := func(p *process) bool { return p != nil && !p.down && p.running() }
	if s.Snapshot != w.seen.snapshot && slices.ContainsFunc(w.seen.holders, holds) {
		w.t.Errorf("the cache is Ready with snapshot %d, though a data node lives that held snapshot %d", s.Snapshot, w.seen.snapshot)
	}
	for i, n := range s.Nodes {
		if n.Address == intruderAddr {
			w.t.Errorf("data node %d is a process that does not know the secret", i)
		}
	}
	for i, p := range w.nodes {
		if p.down && time.Since(p.downAt) > noticed {
			w.t.Errorf("the cache is Ready, but data node %d was ended %s ago", i, time.Since(p.downAt))
		}
	}
	w.seen = ready{s.Snapshot, slices.Clone(w.nodes)}
	for _, v := range w.store.lake.versions {
		if v.snapshot == s.Snapshot && s.Rows == int64(len(v.rows)) && s.Splits.Done == s.Splits.Total {
			return
		}
	}
	w.t.Errorf("the cache is Ready with %d rows of snapshot %d and %d of %d splits", s.Rows, s.Snapshot, s.Splits.Done, s.Splits.Total)
}
