// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// stubs are the data nodes of a head. They stay joined to the head at its current address until they are stopped.
type stubs struct {
	list    []*stub
	head    atomic.Pointer[process]
	readers int // in a node's vitals

	sent, received atomic.Int64 // bytes of plans, to and from the head
	recalls, beats atomic.Int64
	joins, readies atomic.Int64
}

// stub is a data node that speaks the peer protocol and holds no rows.
type stub struct {
	index  int
	all    *stubs
	conn   *grpc.ClientConn
	cancel context.CancelFunc

	mu      sync.Mutex // for sending
	held    *peer.Held
	outline []byte
	kept    map[int]peer.Keep
	done    []peer.SplitDone
	bytes   int64
}

// startStubs starts n data nodes, which end with the test.
func startStubs(t *testing.T, n, readers int, of *process) *stubs {
	t.Helper()
	s := &stubs{readers: readers}
	s.head.Store(of)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.head.Load().flight)
	}
	for i := range n {
		conn, err := transport.Dial("head:1", transport.TLS{}, dial)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		node := &stub{index: i, all: s, conn: conn, cancel: cancel, kept: map[int]peer.Keep{}}
		s.list = append(s.list, node)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			node.run(ctx)
		}()
		t.Cleanup(func() {
			cancel()
			<-ended
			_ = conn.Close()
		})
	}
	return s
}

// run keeps a stub joined until ctx ends.
func (n *stub) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = n.session(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
		n.conn.ResetConnectBackoff()
	}
}

func (n *stub) session(parent context.Context) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	stream, err := peer.Join(ctx, n.conn, "secret")
	if err != nil {
		return err
	}
	if n.held != nil {
		n.held.Parts = slices.Sorted(maps.Keys(n.kept))
	}
	hello := peer.Hello{
		V: peer.Version, Index: n.index, Incarnation: fmt.Sprintf("%016x", n.index+1), Held: n.held,
		Address: fmt.Sprintf("train-cache-0-%d.train-cache.team-vision.svc.cluster.local:50051", n.index+1),
	}
	if err := n.send(stream, peer.ToHead{Hello: &hello}); err != nil {
		return err
	}
	n.all.joins.Add(1)
	go n.beat(ctx, stream)
	for {
		m, err := stream.Recv()
		if err == nil {
			err = n.obey(stream, m)
		}
		if err != nil {
			return err
		}
	}
}

func (n *stub) send(stream peer.NodeStream, m peer.ToHead) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return stream.Send(m)
}

// beat sends heartbeats until ctx ends.
func (n *stub) beat(ctx context.Context, stream peer.NodeStream) {
	ticker := time.NewTicker(peer.HeartbeatEvery)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p := peer.Progress{Bytes: 1 << 36}
		if i%2 == 0 {
			p.Vitals = n.vitals(i)
		}
		if n.send(stream, peer.ToHead{Progress: &p}) != nil {
			return
		}
		n.all.beats.Add(1)
	}
}

// obey does what the head says, as a data node does.
func (n *stub) obey(stream peer.NodeStream, m peer.ToNode) error {
	switch {
	case m.Assign != nil:
		n.all.received.Add(int64(len(m.Assign.Part) + len(m.Assign.Outline)))
		return n.load(stream, m.Assign)
	case m.Keep != nil:
		k := n.kept[m.Keep.Part]
		n.all.received.Add(int64(len(m.Keep.Splits) + len(m.Keep.Loaded)))
		if len(m.Keep.Splits) > 0 {
			k.Splits = m.Keep.Splits
		}
		if len(m.Keep.Loaded) > 0 {
			k.Loaded = m.Keep.Loaded
		}
		n.kept[m.Keep.Part] = k
	case m.Ready != nil:
		n.all.received.Add(int64(len(m.Ready.Outline)))
		n.outline, n.held.Ready = m.Ready.Outline, true
		n.all.readies.Add(1) // the last message to this node
	case m.Recall != nil:
		piece := peer.Piece{Last: true, Splits: n.outline}
		if m.Recall.Part != peer.Outline {
			k := n.kept[m.Recall.Part]
			piece.Splits, piece.Loaded = k.Splits, k.Loaded
		}
		n.all.recalls.Add(1)
		n.all.sent.Add(int64(len(piece.Splits) + len(piece.Loaded)))
		return n.send(stream, peer.ToHead{Piece: &piece})
	}
	return nil
}

// load says that all splits of an assignment are loaded.
func (n *stub) load(stream peer.NodeStream, a *peer.Assign) error {
	if len(a.Part) > 0 {
		splits, err := source.DecodeSplits(a.Part)
		if err != nil {
			return err
		}
		n.done, n.bytes, n.kept = nil, 0, map[int]peer.Keep{n.index: {Splits: a.Part}}
		for i, s := range splits {
			sum := sha256.Sum256([]byte(s.File))
			n.done = append(n.done, peer.SplitDone{Split: a.First + i, Rows: s.Rows, Bytes: s.Bytes, Hash: sum[:16]})
			n.bytes += s.Bytes
		}
	}
	n.held, n.outline = &peer.Held{Plan: a.Plan, Request: a.Request, Ready: a.Ready}, a.Outline
	for some := range slices.Chunk(n.done, 4096) {
		if err := n.send(stream, peer.ToHead{Progress: &peer.Progress{Plan: a.Plan, Done: some, Bytes: n.bytes}}); err != nil {
			return err
		}
	}
	rows := int64(len(n.done)) * rowsOfSplit
	return n.send(stream, peer.ToHead{Loaded: &peer.Loaded{Plan: a.Plan, Rows: rows, Bytes: n.bytes, ColumnBytes: []int64{n.bytes, rows * 8}, Fits: make([]byte, 2)}})
}

// vitals are those of a data node that many ranks read.
func (n *stub) vitals(i int) *peer.Vitals {
	v := &peer.Vitals{Memory: protocol.MemoryStatus{Used: 1 << 36, Peak: 1 << 36, Limit: 1 << 37}, Readers: []protocol.Reader{}}
	for r := range n.all.readers {
		rank := (n.index*7 + r*131) % 10_000
		v.Readers = append(v.Readers, protocol.Reader{
			Job: "team-vision/train-7b", Client: fmt.Sprintf("10.%d.%d.7", rank/2000, rank/8%250), Kind: protocol.Epoch, Rank: rank, World: 10_000,
			Traffic: protocol.Traffic{Streams: 1, Rows: int64(i * 1000), Bytes: int64(i) << 22, ClientMS: int64(i * 400), NodeMS: int64(i * 30)},
		})
	}
	return v
}
