// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node is a data node of a cache: it joins a head, loads the splits assigned to it into chunks, and streams their rows to
// clients with a ticket.
package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/node/load"
	"github.com/kubeflow/datacache/cacheserver/node/serve"
	"github.com/kubeflow/datacache/cacheserver/node/stage"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/cacheserver/work"
)

// Config configures a data node. Fields without a comment are required.
type Config struct {
	role.Config
	Index     int    // index of this node, from 0
	Head      string // host:port of the head
	Advertise string // host:port where clients connect to its Flight service
	Machine   string // name of the machine that it runs on, which the head's messages show; may be empty
	Workers   int    // number of row groups decoded concurrently; 0: one per core
	// FilterMemory is the maximum memory, in bytes, of the indexes of filters; they are within Budget too. 0: a twentieth of its limit.
	FilterMemory int64
	PutBudget    *offheap.Budget // for what clients put, a part of Budget; nil: all of it
	Work         *work.Pool      // evaluates filters; shared by the nodes of one process; nil: its own, with one step per core at a time
	Decoding     *load.Limiter   // shared by the nodes of one process; nil: this node has its own
	Turns        *fair.Queue     // of the streams, shared by the nodes of one process; nil: this node has its own, without weights and limits

	Spill        *spill.Dir // where the rows are stored too, so that they may be larger than the memory; nil: nowhere
	SpillRemoved bool       // the files are removed when the node stops, instead of being left for the next process
	Sharers      int        // number of nodes that share Budget; 0: one

	Dial        transport.Dialer // for connections to the head; nil: TCP
	JoinAfter   time.Duration    // from Start to the first attempt to join
	SendTimeout time.Duration    // time for a client to read a message before its stream is ended; 0: ten minutes
}

// Node is one data node. Make it with New, run it with Start; it is safe for concurrent use.
type Node struct {
	cfg         Config
	incarnation string
	server      *serve.Server
	stage       *stage.Stage
	disk        *spill.Dir // where the stage stores what clients put; nil: in memory alone

	datasets datasets

	mu       sync.Mutex
	assigned *assignment // nil until the head assigns one, and after it was dropped
	failure  string      // why the last assignment was dropped
	sealer   protocol.Sealer
	stopping bool
	joined   bool
	refusal  string // why the node has not joined
}

// New makes a node that has not started.
func New(cfg Config) (*Node, error) {
	if cfg.Index < 0 {
		return nil, fmt.Errorf("index: %d, want the node's place, from 0", cfg.Index)
	}
	cfg.TLS = cfg.TLS.Named(cfg.Advertise)
	cfg.SendTimeout = cmp.Or(cfg.SendTimeout, transport.SendTimeout)
	cfg.Workers = cmp.Or(cfg.Workers, runtime.GOMAXPROCS(0))
	cfg.FilterMemory = cmp.Or(cfg.FilterMemory, cfg.Budget.Limit()/20)
	if cfg.Work == nil {
		cfg.Work = work.New(runtime.GOMAXPROCS(0))
	}
	if cfg.PutBudget == nil {
		cfg.PutBudget = cfg.Budget
	}
	if cfg.Decoding == nil {
		cfg.Decoding = load.NewLimiter()
	}
	if cfg.Turns == nil {
		cfg.Turns = fair.New(serve.Turns())
	}
	incarnation := make([]byte, 8)
	if _, err := rand.Read(incarnation); err != nil {
		return nil, fmt.Errorf("make the incarnation: %w", err)
	}
	n := &Node{cfg: cfg, incarnation: hex.EncodeToString(incarnation)}
	if cfg.Spill != nil && !cfg.SpillRemoved {
		n.disk = cfg.Spill.Below("puts")
	}
	n.stage = stage.New(stage.Config{
		Disk: n.disk, Node: cfg.Index, Budget: cfg.PutBudget, Signer: protocol.NewSigner(peer.PutKey(cfg.Secret)), Log: cfg.Log, Gone: n.datasets.drop, TLS: cfg.TLS, Dial: cfg.Dial, Access: cfg.Access,
	})
	n.datasets = datasets{cfg: &n.cfg, stage: n.stage, used: map[string]*dataset{}}
	n.server = serve.New(serve.Config{Config: cfg.Config, Index: cfg.Index, Turns: cfg.Turns, SendTimeout: cfg.SendTimeout, Admit: n.admit, Put: n.stage.Receive, Write: n.datasets.write})
	return n, nil
}

// Start serves until ctx ends or the head tells this process to exit. It then shuts down in order: not ready, the head informed,
// streams completed, memory freed. A failed load does not end it.
func (n *Node) Start(ctx context.Context) error {
	defer context.AfterFunc(ctx, n.setStopping)()
	err := n.cfg.Serve(ctx, role.Role{
		Memory: n.server.Memory(), Status: n, Page: &pageSource{node: n}, Tasks: []func(context.Context) error{n.keepJoined, n.server.ShareMemory},
		Register: func(r grpc.ServiceRegistrar) { transport.RegisterFlight(r, n.server.Flight(n.Status)) },
	})
	n.giveUp("stopped", errReleased)
	n.stage.Close()
	return err
}

func (n *Node) setStopping() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopping = true
}

// accept processes an assignment: one of the same plan is kept, another one or a failed one is replaced and its streams are ended.
func (n *Node) accept(ctx context.Context, spec peer.Assign) *assignment {
	n.mu.Lock()
	n.sealer = protocol.NewSealer(peer.TicketKey(n.cfg.Secret, spec.Salt))
	old := n.assigned
	if old != nil && old.spec.Plan == spec.Plan && old.failure() == nil {
		n.mu.Unlock()
		old.keepOutline(spec.Outline, spec.Ready)
		return old
	}
	if old != nil && old.spec.Plan == spec.Plan {
		spec.Part = old.spec.Part // which it holds, but could not load
	}
	// ctx is the node's, not the session's: loading continues when the connection to the head breaks.
	a := n.startAssignment(ctx, spec, old)
	n.assigned, n.failure = a, ""
	n.mu.Unlock()
	n.cfg.Log.Info("loading", "plan", spec.Plan, "splits", spec.Splits)
	return a
}

// giveUp drops the node's rows; running streams keep their memory until they end. Those that wait for rows end with early.
func (n *Node) giveUp(reason string, early error) {
	n.mu.Lock()
	a := n.assigned
	n.assigned, n.failure = nil, reason
	n.mu.Unlock()
	if a != nil {
		a.early.End(nil, early)
		a.close()
		debug.FreeOSMemory()
		n.cfg.Budget.LimitHeap(0)
	}
}

// admit checks a ticket and returns the rows that it is for.
func (n *Node) admit(ctx context.Context, sealed []byte) (serve.Lent, error) {
	for {
		lent, opened, err := n.tryAdmit(sealed)
		if opened == nil {
			return lent, err
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return serve.Lent{}, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// tryAdmit is admit, but where the call must wait until it is known what the rows look like, it returns a channel that is closed then.
func (n *Node) tryAdmit(sealed []byte) (l serve.Lent, opened <-chan struct{}, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.emptyLocked(); err != nil {
		return l, nil, err
	}
	ticket, err := n.sealer.Open(sealed, time.Now())
	if err != nil {
		return l, nil, err
	}
	if early := n.assigned.early; ticket.Early && !early.IsOpen() {
		return l, early.Opened(), nil
	}
	l, err = n.lendLocked(ticket)
	return l, nil, err
}

// lend lends the rows of a ticket that comes from the head itself.
func (n *Node) lend(ticket protocol.Ticket) (serve.Lent, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.emptyLocked(); err != nil {
		return serve.Lent{}, err
	}
	return n.lendLocked(ticket)
}

// emptyLocked returns an error if nothing is assigned to the node.
func (n *Node) emptyLocked() error {
	if n.assigned != nil {
		return nil
	}
	return status.Errorf(codes.Unavailable, "data node %d has nothing loaded: %s", n.cfg.Index, cmp.Or(n.failure, "it waits for the head"))
}

func (n *Node) lendLocked(ticket protocol.Ticket) (serve.Lent, error) {
	a := n.assigned
	put := n.datasets.find(ticket.Dataset)
	if put == nil && ticket.Dataset != a.spec.Dataset.Fingerprint {
		return serve.Lent{}, status.Errorf(codes.FailedPrecondition, "ticket: for dataset %s, this node holds %s; ask the head again", ticket.Dataset, a.spec.Dataset.Fingerprint)
	}
	if ticket.Node != n.cfg.Index || ticket.Incarnation != n.incarnation {
		return serve.Lent{}, status.Errorf(codes.FailedPrecondition, "ticket: for another start of data node %d, this is data node %d restarted since; ask the head again", ticket.Node, n.cfg.Index)
	}
	if put != nil {
		return lend(ticket, put.Layout, put.Rows, put.indexes, put.calls)
	}
	return a.lend(ticket)
}

// Ready implements opshttp.Server: a node is ready when its assignment, which may be empty, is loaded and the head has been told.
func (n *Node) Ready() (bool, string) {
	s := n.status()
	return s.State == "Ready", s.State + ": " + s.Reason
}

// Status implements opshttp.Server; the value is a Status.
func (n *Node) Status() any {
	s := n.status()
	_, s.Readers = n.server.Traffic(protocol.MaxReaders)
	return s
}

// Status is the JSON of a data node's /status.
type Status struct {
	Index       int                   `json:"index"`
	Incarnation string                `json:"incarnation"`
	State       string                `json:"state"` // Waiting, Loading, Ready, Failed or Stopping
	Reason      string                `json:"reason"`
	Rows        int64                 `json:"rows"`
	Bytes       int64                 `json:"bytes"`
	Splits      protocol.SplitStatus  `json:"splits"`
	Memory      protocol.MemoryStatus `json:"memory"`
	Spill       *protocol.SpillStatus `json:"spill,omitempty"` // where the rows are, if they are in files too
	Readers     []protocol.Reader     `json:"readers,omitempty"`
}

func (n *Node) status() Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := Status{Index: n.cfg.Index, Incarnation: n.incarnation, Memory: memoryOf(n.cfg.Budget)}
	if n.assigned != nil {
		n.assigned.describe(&s)
		s.Spill = n.assigned.spilled(n)
	}
	switch {
	case n.stopping:
		s.State, s.Reason = "Stopping", "stopping"
	case n.assigned == nil && n.failure != "":
		s.State, s.Reason = "Failed", n.failure
	case n.assigned == nil:
		s.State, s.Reason = "Waiting", n.waitsForLocked()
	case s.State == "Ready" && !n.joined:
		s.State, s.Reason = "Waiting", "loaded, "+n.waitsForLocked()
	}
	return s
}

func memoryOf(b *offheap.Budget) protocol.MemoryStatus {
	return protocol.MemoryStatus{Used: b.Used(), Peak: b.Peak(), Limit: b.Limit()}
}

func (n *Node) waitsForLocked() string {
	text := "waiting for the head at " + n.cfg.Head
	if n.refusal != "" {
		text += ": " + n.refusal
	}
	return text
}

// errUnwanted ends a process that another one has replaced.
var errUnwanted = errors.New("this process is not wanted as a data node any more")
