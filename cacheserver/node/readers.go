// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

const (
	// maxReaders is the number of readers that are told apart; more share the last one.
	maxReaders = 256
	// readerKept is how long a reader without streams is kept.
	readerKept = time.Minute
)

// readerKey tells readers apart: the streams of one rank of a job, with all its workers, are one reader.
type readerKey struct {
	job, client string // job is empty if the client names none
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

	// Protected by readers.mu.
	streams int       // open streams
	left    time.Time // when the last of them ended
}

// readers are the readers of a node. The zero value is ready to use; it is safe for concurrent use.
type readers struct {
	total traffic

	mu   sync.Mutex
	open int // streams
	all  map[readerKey]*reader
}

// begin registers a stream of a reader. The caller calls end once.
func (r *readers) begin(key readerKey, now time.Time) *reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[readerKey]*reader{}
	}
	of := r.all[key]
	if of == nil {
		r.dropLocked(now)
		if len(r.all) >= maxReaders-1 {
			key = readerKey{client: "others"}
			of = r.all[key]
		}
	}
	if of == nil {
		of = &reader{}
		r.all[key] = of
	}
	of.streams++
	r.open++
	return of
}

func (r *readers) end(of *reader, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of.streams--
	of.left = now
	r.open--
}

func (r *readers) dropLocked(now time.Time) {
	for key, of := range r.all {
		if of.streams == 0 && now.Sub(of.left) > readerKept {
			delete(r.all, key)
		}
	}
}

// list returns the total and at most most readers, those that sent the most bytes. waiting has the nanoseconds that messages being sent
// have waited so far, by reader.
func (r *readers) list(now time.Time, most int, waiting map[*reader]int64) (protocol.Traffic, []protocol.Reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropLocked(now)
	var waits int64
	for _, w := range waiting {
		waits += w
	}
	list := make([]protocol.Reader, 0, len(r.all))
	for key, of := range r.all {
		list = append(list, protocol.Reader{
			Job: key.job, Client: key.client, Kind: key.kind, Rank: key.rank, World: key.world, Traffic: of.read(of.streams, waiting[of]),
		})
	}
	slices.SortFunc(list, func(a, b protocol.Reader) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Client, b.Client))
	})
	return r.total.read(r.open, waits), list[:min(len(list), most)]
}

func (t *traffic) read(streams int, waits int64) protocol.Traffic {
	const ms = int64(time.Millisecond)
	return protocol.Traffic{
		Streams: streams, Rows: t.rows.Load(), Bytes: t.bytes.Load(), ClientMS: (t.client.Load() + waits) / ms, NodeMS: t.node.Load() / ms,
	}
}

// waits returns the nanoseconds that messages being sent have waited for their clients so far, by reader.
func (a *senders) waits(now time.Time) map[*reader]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	waits := map[*reader]int64{}
	for s := range a.open {
		if since := s.waiting.Load(); since != 0 {
			waits[s.reader] += max(now.UnixNano()-since, 0)
		}
	}
	return waits
}

// traffic returns what clients read from this node: all of them, and at most most readers.
func (n *Node) traffic(most int) (protocol.Traffic, []protocol.Reader) {
	now := time.Now()
	return n.readers.list(now, most, n.senders.waits(now))
}
