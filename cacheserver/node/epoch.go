// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/chunk"
	"github.com/kubeflow/datacache/cacheserver/order"
)

const (
	// usualBytes is about how long a batch of an epoch is, unless a step that lies together is longer. What was gathered is
	// then in the L2 cache still when the transport copies it; batches of 3 MiB cost the server a tenth more and pyarrow's
	// client up to a third. Shorter ones cost clients more wake-ups and conversions. A client that stops reading keeps two
	// in memory.
	usualBytes = 1 << 20
	// mostBytes is what a batch may reach if that makes it end with a step, or if its rows are longer than others.
	mostBytes = 4 << 20
	// mostRows bounds the rows of a batch, however narrow they are.
	mostRows = 1 << 16
)

// epoch streams this node's share of a rank's sequence, in sequence order.
func (s *sender) epoch(l serving, p *chunk.Projection) error {
	cursor, err := order.NewCursor(l.ticket.Epoch, l.ticket.Share)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "ticket: %v", err)
	}
	var block [4096]uint64
	var rows []int64
	every := l.cuts(l.rows.MeanBytes(p))
	for left := every.positions; ; {
		if err := s.stream.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		n := cursor.Next(block[:min(len(block), left)])
		rows, left = l.keep(rows, block[:n]), left-n
		ready := len(rows) - len(rows)%every.rows
		if n == 0 || left == 0 {
			ready, left = len(rows), every.positions
		}
		for batch := range slices.Chunk(rows[:ready], every.rows) {
			if err := s.picked(l, p, batch); err != nil {
				return err
			}
		}
		if n == 0 {
			return nil
		}
		rows = rows[:copy(rows, rows[ready:])]
	}
}

// cut says where a sequence is cut: after so many positions of the rank's sequence, or so many rows of this node.
type cut struct {
	positions, rows int
}

// cuts makes batches of whole steps where a step's rows lie together, unless a step is too long: a client need not put
// one together from two batches then. Where rows are shuffled over nodes it must anyway, and batches are as long as each
// other, however the rows fall: an allocator has fresh memory mapped for a message longer than those before, and clumps
// of 64 rows made lengths that differ by half. mean is the bytes of a row.
func (l serving) cuts(mean int64) cut {
	lo, hi := order.Shard(l.ticket.Share.Rank, l.ticket.Share.World, l.ticket.Epoch.GlobalBatch)
	step := float64(hi - lo)
	here := float64(max(l.ticket.Bounds.Len(), 1)) / float64(max(l.ticket.Epoch.Rows, 1)) // rows a position
	rows := func(bytes int64) int64 { return min(max(bytes/max(mean, 1), 1), mostRows) }
	usual := rows(usualBytes)
	if l.ticket.Epoch.Shuffle && here < 1 || step == 0 || step > float64(rows(mostBytes))/here {
		return cut{positions: math.MaxInt, rows: int(usual)}
	}
	return cut{positions: int(max(math.Floor(float64(usual)/here/step), 1) * step), rows: math.MaxInt}
}

// keep appends those of the epoch's rows that this node holds, by its own numbers.
func (l serving) keep(rows []int64, epoch []uint64) []int64 {
	first, count := uint64(l.ticket.Bounds[0]), uint64(l.ticket.Bounds.Len())
	n := len(rows)
	rows = slices.Grow(rows, len(epoch))[:n+len(epoch)]
	for _, row := range epoch {
		// Every row is written, and those that stay are counted: with two nodes a branch would be guessed wrong half the time.
		rows[n] = int64(row - first)
		if row-first < count {
			n++
		}
	}
	return rows[:n]
}

// picked streams the node's own rows in the order given, in one batch if they fit.
func (s *sender) picked(l serving, p *chunk.Projection, rows []int64) error {
	for len(rows) > 0 {
		message, n, err := l.rows.Gather(p, rows, mostBytes)
		if err != nil {
			return status.Errorf(codes.Internal, "gather %d rows: %v", len(rows), err)
		}
		if err := s.batch(message); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}
