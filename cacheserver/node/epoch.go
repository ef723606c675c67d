// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"math"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

const (
	// usualBytes is about how long a batch of an epoch is, unless the client says (protocol.BatchBytesHeader), or a step that
	// lies together is longer. What was gathered is then in the L2 cache still when the transport copies it, and glibc has
	// memory for it at hand: pyarrow's client took up to a third more CPU for 3 MiB. A client that stops reading keeps two
	// in memory, see batchLength.
	usualBytes = 1 << 20
	// leastBytes and longestBytes bound what a client may say. The latter leaves room for rows longer than the mean.
	leastBytes   = 64 << 10
	longestBytes = mostBytes / 16 * 15
	// mostBytes is what a batch may reach if that makes it end with a step, or if its rows are longer than others: with its
	// header, no more than the 4 MiB that gRPC's clients take unless they are told otherwise.
	mostBytes = 4<<20 - 64<<10
	// mostRows bounds the rows of a batch, however narrow they are.
	mostRows = 1 << 16
	// blockRuns is how many runs of the sequence are looked at at a time.
	blockRuns = 512
)

// epoch streams this node's share of a rank's sequence, in sequence order, in batches of about so many bytes.
func (s *sender) epoch(l admitted, p *rows.Projection, length int64) error {
	most := min(mostBytes, s.most)
	length = min(length, most/16*15)
	cursor, err := epoch.NewCursor(l.ticket.Epoch, l.ticket.Share)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "ticket: %v", err)
	}
	cursor.Within(uint64(l.ticket.Bounds[0]), uint64(l.ticket.Bounds[1]))
	every := l.cuts(l.rows.MeanBytes(p), length, most)
	var runs []rows.Run // of this node, not sent yet
	var rows int        // that they have
	for left := every.positions; ; {
		if err := s.stream.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		runs = slices.Grow(runs, blockRuns)
		block := runs[len(runs) : len(runs)+blockRuns]
		n, passed := cursor.Next(block, left)
		for i := range block[:n] {
			rows += int(block[i].Rows)
		}
		runs, left = runs[:len(runs)+n], left-passed
		flush := passed == 0
		if left == 0 {
			flush, left = true, every.positions
		}
		unsent := runs
		for rows >= every.rows || flush && rows > 0 {
			message, rest, err := s.gather(l, p, unsent, min(rows, every.rows), int(most))
			if err != nil {
				return refusal(err, "gather %d rows", min(rows, every.rows))
			}
			if err := s.batch(message); err != nil {
				return err
			}
			unsent, rows = rest, rows-message.Rows
		}
		if passed == 0 {
			return nil
		}
		if len(unsent) < len(runs) {
			runs = runs[:copy(runs, unsent)]
		}
	}
}

// batchLength is about how long the batches of the call's epoch are to be, if there is memory for them.
func batchLength(ctx context.Context) (int64, error) {
	said, err := protocol.BatchBytes(ctx)
	if err != nil {
		return 0, err
	}
	if said == 0 {
		return usualBytes, nil
	}
	return min(max(said, leastBytes), longestBytes), nil
}

// cut says where a sequence is cut: after so many positions of the rank's sequence, or so many rows of this node.
type cut struct {
	positions uint64
	rows      int
}

// endless is a cut's positions where only rows count, and its rows where only positions do.
const endless = math.MaxInt

// cuts makes batches of whole steps where a step's rows lie together, unless a step is too long: a client need not put
// one together from two batches then. Where rows are shuffled over nodes it must anyway, and batches are as long as each
// other, however the rows fall: an allocator has fresh memory mapped for a message longer than those before, and clumps
// of 64 rows made lengths that differ by half. mean is the bytes of a row, length those of a
// batch, longest those that one may have at most.
func (l admitted) cuts(mean, length, longest int64) cut {
	lo, hi := epoch.Shard(l.ticket.Share.Rank, l.ticket.Share.World, l.ticket.Epoch.GlobalBatch)
	step := hi - lo
	scattered := l.ticket.Epoch.Shuffle && uint64(l.ticket.Bounds.Len()) < l.ticket.Epoch.Rows
	rows := func(bytes int64) uint64 { return uint64(min(max(bytes/max(mean, 1), 1), mostRows)) }
	most := rows(length)
	if scattered || step == 0 || step > rows(longest) {
		return cut{positions: endless, rows: int(most)}
	}
	return cut{positions: max(most/step, 1) * step, rows: endless}
}
