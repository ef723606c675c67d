// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stage receives the rows that clients put into a data node, and keeps them until they are published and after.
package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/access"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/put/incoming"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// Config configures a stage. All fields but Disk, Access, TLS and Dial are required.
type Config struct {
	Node   int // index of the data node
	Budget *offheap.Budget
	Signer protocol.Signer
	Log    *slog.Logger
	// Disk is where parts are stored too, unless their put says otherwise; nil: nowhere. The files are of this node alone, and stay when the stage is
	// closed.
	Disk *spill.Dir
	// Access says whose tickets are good; nil: everybody's.
	Access *access.Guard
	// Gone is called when the rows of a published put are not to be read any more.
	Gone func(id string)

	TLS  transport.TLS    // of connections to other data nodes
	Dial transport.Dialer // for them; nil: TCP
}

// Stage has what a data node has of all puts. Make it with New; it is safe for concurrent use.
type Stage struct {
	cfg        Config
	neighbours neighbours

	mu      sync.Mutex
	puts    map[string]*put
	opened  chan struct{} // closed, and replaced, when a put was added
	reports []peer.Staged // to be sent to the head
	news    chan struct{} // buffered: has a value if there are reports
}

// put is what the node has of one put. The stage's mu protects the fields after ended.
type put struct {
	peer.Put
	layout *rows.Layout // nil: refused says why
	arena  *offheap.Arena
	ended  context.Context // of its streams; canceled when the put is freed
	end    context.CancelFunc

	parts map[int][]*part // good attempts, the last one at the end
	files int             // the number of the next file
	// queues are the parts to copy to other data nodes, by node.
	queues  map[int]*queue
	has     *Held
	refused error // why parts can't be taken
}

// partMemory is the memory of what the stage has of a part besides its rows, measured.
const partMemory = 768

// part is a good attempt of a part. It has reserved partMemory.
type part struct {
	protocol.PutPart
	chunks []*rows.Chunk
	arena  *offheap.Arena // of the chunks
	file   *spill.File    // with its rows; nil: there is none
	known  chan struct{}  // closed when the head knows of it
}

// newPart makes a part of chunks in the put's arena.
func (p *put) newPart(of protocol.PutPart, chunks []*rows.Chunk) (*part, error) {
	if err := p.arena.Budget().ReserveHeap(partMemory); err != nil {
		return nil, err
	}
	return &part{PutPart: of, chunks: chunks, arena: p.arena, known: make(chan struct{})}, nil
}

// Held is the rows of a published put on this node.
type Held struct {
	peer.HeldRows
	Put    peer.Put
	Layout *rows.Layout
	Rows   *rows.Rows

	parts []protocol.PutPart // parts of the publication that are on this node, copies included
	own   []protocol.PutPart // parts that belong to this node, without copies
}

// Parts are those of the node, in the order of rows.
func (h *Held) Parts() []protocol.PutPart { return h.own }

// New returns a stage without puts.
func New(cfg Config) *Stage {
	return &Stage{
		cfg: cfg, neighbours: neighbours{cfg: &cfg, conns: map[string]*grpc.ClientConn{}},
		puts: map[string]*put{}, opened: make(chan struct{}), news: make(chan struct{}, 1),
	}
}

// Open adds a put so that its parts can be received. Without memory for its schema, the parts are rejected.
func (s *Stage) Open(of peer.Put) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.puts[of.ID] != nil {
		return
	}
	arena := offheap.NewArena(s.cfg.Budget.Of(of.Writer, of.MoreForWriter()))
	if s.onDisk(of) {
		arena.Paged()
	}
	ended, end := context.WithCancel(context.Background()) //nolint:forbidigo // ends with Unput
	p := &put{Put: of, arena: arena, ended: ended, end: end, parts: map[int][]*part{}, queues: map[int]*queue{}}
	if p.refused = p.parseSchema(); p.refused != nil {
		s.cfg.Log.Error("a put can't be received", "name", of.Name, "reason", p.refused)
		p.Schema, p.Columns, p.Memory = nil, nil, 0
	}
	s.puts[of.ID] = p
	close(s.opened)
	s.opened = make(chan struct{})
}

// parseSchema makes the layout, and reserves its memory until the put is removed.
func (p *put) parseSchema() error {
	var err error
	if p.Memory, err = incoming.Memory(p.Schema); err != nil {
		return err
	}
	if err := p.arena.Budget().ReserveHeap(p.Memory); err != nil {
		return fmt.Errorf("its schema: %w", err)
	}
	if p.layout, err = incoming.Layout(p.Schema); err != nil {
		p.arena.Budget().ReleaseHeap(p.Memory)
	}
	return err
}

// openWait is how long a stream waits for the head to tell the node of its put.
const openWait = 5 * time.Second

// wait returns a put, once the head has told the node of it.
func (s *Stage) wait(ctx context.Context, id string) (*put, error) {
	deadline := time.NewTimer(openWait)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		p, opened := s.puts[id], s.opened
		s.mu.Unlock()
		if p != nil {
			return p, nil
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-deadline.C:
			return nil, status.Errorf(codes.NotFound, "put: data node %d knows no put %.64q: it has ended, or the node has lost the head; put.status tells", s.cfg.Node, id)
		}
	}
}

// add records a part. An attempt with the rows of an earlier one takes no memory.
func (s *Stage) add(p *put, made *part, copied bool) (*part, error) {
	var dropped []*part
	defer func() { discard(dropped) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.puts[p.ID] != p {
		dropped = append(dropped, made)
		return nil, errFreed
	}
	attempts := p.parts[made.Part]
	if i := slices.IndexFunc(attempts, func(o *part) bool { return o.Hash == made.Hash }); i >= 0 {
		dropped = append(dropped, made)
		same := attempts[i]
		same.Attempt = made.Attempt
		made = same
		attempts = slices.Delete(attempts, i, i+1)
	} else if p.has != nil && p.has.Settled && !copied {
		dropped = append(dropped, made)
		return nil, status.Errorf(codes.FailedPrecondition, "put: it is published with other rows of part %d: begin another one", made.Part)
	}
	attempts = append(attempts, made)
	if len(attempts) > peer.MostAttempts {
		dropped = append(dropped, attempts[0])
		attempts = slices.Delete(attempts, 0, 1)
	}
	p.parts[made.Part] = attempts
	s.reportLocked(peer.Staged{ID: p.ID, Parts: []protocol.PutPart{made.PutPart}})
	return made, nil
}

var errFreed = status.Error(codes.NotFound, "put: it has ended: it was aborted, or no part came for its ttl_s")

// reportLocked queues a report to the head.
func (s *Stage) reportLocked(m peer.Staged) {
	s.reports = append(s.reports, m)
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// News has a value when Reports returns some.
func (s *Stage) News() <-chan struct{} { return s.news }

// Reports returns the reports to the head since the last call.
func (s *Stage) Reports() []peer.Staged {
	s.mu.Lock()
	defer s.mu.Unlock()
	reports := s.reports
	s.reports = nil
	return reports
}

// mostReported bounds the number of parts in one report, which must be shorter than gRPC's limit of 4 MiB.
const mostReported = 4096

// Inventory returns all that the node has, for a head that it has joined, instead of the reports so far.
func (s *Stage) Inventory() (all []peer.Staged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = nil
	for _, p := range s.puts {
		if p.refused != nil {
			continue
		}
		p.forgetCopiesLocked()
		of := p.Put
		m := peer.Staged{Put: &of, ID: p.ID}
		if p.has != nil {
			m.Has = &p.has.HeldRows
			for chosen := range slices.Chunk(p.has.parts, mostReported) {
				all = append(all, peer.Staged{Put: &of, ID: p.ID, Has: m.Has, Chosen: chosen})
			}
		}
		for _, attempts := range p.parts {
			for _, a := range attempts {
				if len(m.Parts) == mostReported {
					all = append(all, m)
					m.Parts = nil
				}
				m.Parts = append(m.Parts, a.PutPart)
				select {
				case <-a.known:
				default:
					s.reportLocked(peer.Staged{ID: p.ID, Parts: []protocol.PutPart{a.PutPart}})
				}
			}
		}
		all = append(all, m)
	}
	return append(all, peer.Staged{All: true})
}

// Known records that the head knows of parts.
func (s *Stage) Known(k peer.Known) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.puts[k.ID]
	if p == nil {
		return
	}
	for _, of := range k.Parts {
		for _, a := range p.parts[of.Part] {
			select {
			case <-a.known:
			default:
				if a.Hash == of.Hash {
					close(a.known)
				}
			}
		}
	}
}

// Publish makes the parts of a publication readable and reports that.
func (s *Stage) Publish(m peer.Publish) {
	has, err := s.publish(m)
	if err == nil {
		err = s.record(has)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.reportLocked(peer.Staged{ID: m.ID, Refusal: fmt.Sprintf("data node %d: %v", s.cfg.Node, err)})
		return
	}
	s.reportLocked(peer.Staged{ID: m.ID, Has: &has.HeldRows})
}

// publish returns a copy of what the node has of a publication.
func (s *Stage) publish(m peer.Publish) (*Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.puts[m.ID]
	if p == nil {
		return nil, errors.New("it restarted, and its parts are lost: put them again")
	}
	if p.refused != nil {
		return nil, p.refused
	}
	if p.has == nil || p.has.Fingerprint != m.As.Fingerprint {
		if err := p.publish(m, s.cfg.Node); err != nil {
			return nil, err
		}
	}
	p.has.Publication = m.As
	has := *p.has
	return &has, nil
}

// publish makes the rows of the node's own parts readable.
func (p *put) publish(m peer.Publish, node int) error {
	var chunks []*rows.Chunk
	var own []protocol.PutPart
	for _, want := range m.Parts {
		if p.Node(want.Part) != node {
			continue // the node has the copy
		}
		attempts := p.parts[want.Part]
		i := slices.IndexFunc(attempts, func(o *part) bool { return o.Hash == want.Hash })
		if i < 0 {
			return fmt.Errorf("part %d is lost: put it again", want.Part)
		}
		chunks, own = append(chunks, attempts[i].chunks...), append(own, want)
	}
	all, err := rows.NewRows(p.layout, chunks)
	if err != nil {
		return err
	}
	if p.has != nil {
		p.has.Rows.Release()
	}
	p.has = &Held{
		Put: p.Put, Layout: p.layout, Rows: all, parts: m.Parts, own: own,
		HeldRows: peer.HeldRows{Publication: m.As, NodeRows: all.Len(), Bytes: all.Bytes(), ColumnBytes: all.ColumnBytes(), Fits: all.Fits()},
	}
	return nil
}

// Settle frees the attempts of a put that its publication does not have.
func (s *Stage) Settle(id string) {
	has, dropped := s.settle(id)
	discard(dropped)
	if has == nil {
		return
	}
	if err := s.record(has); err != nil {
		s.cfg.Log.Warn("a dataset is not on disk", "name", has.Put.Name, "reason", err)
	}
	s.cfg.Log.Info("a dataset is published", "name", has.Put.Name, "fingerprint", has.Fingerprint, "rows", has.NodeRows, "bytes", has.Bytes)
}

// settle returns a copy of what is published, nil if nothing is or that was known, and the attempts that are not part of it.
func (s *Stage) settle(id string) (*Held, []*part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.puts[id]
	if p == nil || p.has == nil || p.has.Settled {
		return nil, nil
	}
	p.has.Settled = true
	chosen := map[int]string{}
	for _, c := range p.has.parts {
		chosen[c.Part] = c.Hash
	}
	var dropped []*part
	for number, attempts := range p.parts {
		p.parts[number] = slices.DeleteFunc(attempts, func(a *part) bool {
			if hash, ok := chosen[number]; ok && hash == a.Hash {
				return false
			}
			dropped = append(dropped, a)
			return true
		})
	}
	has := *p.has
	return &has, dropped
}

// discard frees parts.
func discard(parts []*part) {
	for _, p := range parts {
		p.discard()
	}
}

// Unput frees what the node has of a put, removes its files and reports that; streams that read its rows may end before.
func (s *Stage) Unput(id string) {
	s.remove(id, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportLocked(peer.Staged{ID: id, Freed: true})
}

// remove frees what the node has of a put; keep leaves its files.
func (s *Stage) remove(id string, keep bool) {
	s.mu.Lock()
	p := s.puts[id]
	delete(s.puts, id)
	s.mu.Unlock()
	if p == nil {
		return
	}
	s.cfg.Gone(id)
	p.end()
	s.forget(p, keep)
	parts := 0
	for _, attempts := range p.parts {
		parts += len(attempts)
	}
	p.arena.Budget().ReleaseHeap(p.Memory + int64(parts)*partMemory)
	if p.has != nil {
		p.has.Rows.Release()
	}
	p.arena.Release()
}

// Find returns the rows of a published put, nil if the node has none. They are valid until Gone is called, unless they are retained.
func (s *Stage) Find(id string) *Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.puts[id]; p != nil {
		return p.has
	}
	return nil
}

// Close frees everything, and leaves the files. Nothing can be received after it.
func (s *Stage) Close() {
	s.mu.Lock()
	var ids []string
	for id := range s.puts {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.remove(id, true)
	}
	s.neighbours.close()
}
