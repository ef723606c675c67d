// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/internal/identity"
)

const (
	// maxReaders is the number of readers that are told apart; more share the last one.
	maxReaders = 256
	// readerKept is how long a reader without streams is kept.
	readerKept = time.Minute
)

// readerKey tells readers apart: the streams of one rank of a job, with all its workers, are one reader.
type readerKey struct {
	job, client string // job is empty if it is not known and the client names none
	kind        protocol.Kind
	rank, world int
}

func keyOf(ctx context.Context, t protocol.Ticket) readerKey {
	return readerKey{job: t.Job, client: transport.Client(ctx), kind: t.Kind, rank: int(t.Share.Rank), world: int(t.Share.World)}
}

// traffic counts what streams sent, and what they waited for. It is safe for concurrent use.
type traffic struct {
	rows, bytes  atomic.Int64
	client, node atomic.Int64 // nanoseconds: blocked on the client, and working on messages
}

// reader counts for the streams of one readerKey.
type reader struct {
	traffic

	// Protected by streams.mu.
	streams int       // open streams
	left    time.Time // when the last of them ended
}

// streams are the open streams of a node, and their readers. The zero value is ready to use; it is safe for concurrent use.
type streams struct {
	total traffic

	mu      sync.Mutex
	open    map[*sender]*reader
	readers map[readerKey]*reader
}

// begin registers a stream of a reader. The result, an observer, counts it.
func (r *streams) begin(key readerKey, s *sender, now time.Time) *watched {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open, r.readers = map[*sender]*reader{}, map[readerKey]*reader{}
	}
	of := r.readers[key]
	if of == nil {
		r.dropLocked(now)
		if len(r.readers) >= maxReaders-1 {
			key = readerKey{client: "others"}
			of = r.readers[key]
		}
	}
	if of == nil {
		of = &reader{}
		r.readers[key] = of
	}
	of.streams++
	r.open[s] = of
	return &watched{streams: r, stream: s, reader: of}
}

// watched counts one stream among the streams of a node and for its reader.
type watched struct {
	streams *streams
	stream  *sender
	reader  *reader
}

func (w *watched) message(m sent) {
	for _, t := range []*traffic{&w.reader.traffic, &w.streams.total} {
		t.rows.Add(m.rows)
		t.bytes.Add(m.bytes)
		t.node.Add(int64(m.work))
	}
}

func (w *watched) wait(of reason, took time.Duration) {
	if of == forClient {
		w.reader.client.Add(int64(took))
		w.streams.total.client.Add(int64(took))
	}
}

func (w *watched) end(error) {
	w.streams.mu.Lock()
	defer w.streams.mu.Unlock()
	w.reader.streams--
	w.reader.left = time.Now()
	delete(w.streams.open, w.stream)
}

// shed ends the stream whose client has not read anything for the longest time, if that is at least shedAfter.
func (r *streams) shed(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var idle *sender
	since := now.Add(-shedAfter).UnixNano()
	for s := range r.open {
		if w := s.waiting.Load(); w != 0 && w < since && !s.shed.Load() {
			idle, since = s, w
		}
	}
	if idle != nil {
		idle.shed.Store(true)
		transport.Cancel(idle.stream.Context())
	}
}

// revoke ends the streams whose readers may not read on.
func (r *streams) revoke(permits func(*identity.Identity) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.open {
		if permits(s.Ticket.Reader) != nil {
			s.revoked.Store(true)
			transport.Cancel(s.stream.Context())
		}
	}
}

func (r *streams) dropLocked(now time.Time) {
	for key, of := range r.readers {
		if of.streams == 0 && now.Sub(of.left) > readerKept {
			delete(r.readers, key)
		}
	}
}

// list returns what all clients read, and at most most readers, those that sent the most bytes. Messages being sent count with the time
// that they have waited so far.
func (r *streams) list(now time.Time, most int) (protocol.Traffic, []protocol.Reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropLocked(now)
	waiting, waits := map[*reader]int64{}, int64(0)
	for s, of := range r.open {
		if since := s.waiting.Load(); since != 0 {
			waited := max(now.UnixNano()-since, 0)
			waiting[of] += waited
			waits += waited
		}
	}
	list := make([]protocol.Reader, 0, len(r.readers))
	for key, of := range r.readers {
		list = append(list, protocol.Reader{
			Job: key.job, Client: key.client, Kind: key.kind, Rank: key.rank, World: key.world, Traffic: of.read(of.streams, waiting[of]),
		})
	}
	slices.SortFunc(list, func(a, b protocol.Reader) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Client, b.Client))
	})
	return r.total.read(len(r.open), waits), list[:min(len(list), most)]
}

func (t *traffic) read(streams int, waits int64) protocol.Traffic {
	const ms = int64(time.Millisecond)
	return protocol.Traffic{
		Streams: streams, Rows: t.rows.Load(), Bytes: t.bytes.Load(), ClientMS: (t.client.Load() + waits) / ms, NodeMS: t.node.Load() / ms,
	}
}
