// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

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
	// usualBytes is the approximate length of a batch of an epoch, unless the client requests another (protocol.BatchBytesHeader), or
	// a step whose rows are contiguous is longer. At this length a batch is still in the L2 cache when the transport copies it, and
	// the client's glibc can reuse memory: pyarrow's client needed up to a third more CPU time with 3 MiB. For a client that stops
	// reading, two batches stay in memory; see batchLength.
	usualBytes = 1 << 20
	// leastBytes and longestBytes bound the length that a client may request. The latter leaves room for rows longer than the mean.
	leastBytes   = 64 << 10
	longestBytes = mostBytes / 16 * 15
	// mostBytes is the maximum length of a batch that is extended to the end of a step, or whose rows are longer than the mean: with
	// its header it fits in the 4 MiB that gRPC clients accept by default.
	mostBytes = 4<<20 - 64<<10
	// mostRows is the maximum number of rows of a batch.
	mostRows = 1 << 16
	// blockRuns is the number of runs of the sequence that are processed at a time.
	blockRuns = 512
)

// epoch streams this node's part of a rank's sequence, or of a selection's shard, in order, in batches of about length bytes.
func (s *sender) epoch(length int64) error {
	switch scattered, err := s.scattered(); {
	case err != nil:
		return status.Errorf(codes.InvalidArgument, "ticket: %v", err)
	case scattered:
		return s.swept(length)
	}
	most := min(mostBytes, s.most)
	length = min(length, most/16*15)
	walk, err := s.announce()
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "ticket: %v", err)
	}
	every, early := s.cutsNow(length, most), s.Early != nil
	ahead := newAhead(s.Rows)
	defer func() { ahead.wait() }()
	var runs []rows.Run // of this node, not sent yet
	var rows int        // number of rows in runs
	for left := every.positions; ; {
		if err := s.stream.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		runs = slices.Grow(runs, blockRuns)
		block := runs[len(runs) : len(runs)+blockRuns]
		n, passed := walk.Next(block, left)
		rows += total(block[:n])
		runs, left = runs[:len(runs)+n], left-passed
		flush := passed == 0
		if left == 0 {
			flush, left = true, every.positions
		}
		unsent := runs
		for rows >= every.rows || flush && rows > 0 {
			ahead.of(unsent)
			if unsent, rows, err = s.send(unsent, rows, every.rows, int(most)); err != nil {
				return err
			}
		}
		if passed == 0 {
			return nil
		}
		if early && s.Early == nil { // all rows are loaded now
			walk, early, ahead = walk.(*announced).walk, false, newAhead(s.Rows)
			if scattered, err := s.scattered(); err != nil {
				return err
			} else if scattered {
				every = s.sweptCuts(length)
				return s.sweptBy("", parts(walk, every, unsent, left), every)
			}
			every = s.cutsNow(length, most)
		}
		if len(unsent) < len(runs) {
			runs = runs[:copy(runs, unsent)]
		}
	}
}

// total is the number of rows of runs.
func total(runs []rows.Run) (n int) {
	for i := range runs {
		n += int(runs[i].Rows)
	}
	return n
}

// send sends a batch of runs, which have so many rows, of at most some rows and bytes. It returns what is left of both.
func (s *sender) send(runs []rows.Run, count, mostRows, mostBytes int) (rest []rows.Run, left int, err error) {
	message, rest, err := s.gather(runs, min(count, mostRows), mostBytes)
	if err != nil {
		return nil, 0, refusal(err, "gather %d rows", min(count, mostRows))
	}
	return rest, count - message.Rows, s.batch(message)
}

// batchLength returns the approximate length of batches for the call's epoch, provided that there is enough memory.
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

// cut says where to end a batch: after a number of positions of the rank's sequence, or of rows of this node.
type cut struct {
	positions uint64
	rows      int
}

// meanBytes is the mean size of a row for cuts: of the columns that are sent or, where rows are read from spill files, of all columns, since whole
// rows are in memory while a message is made.
func (l Lent) meanBytes() int64 {
	mean := l.Rows.MeanBytes(l.Columns)
	if l.Sweep == nil {
		return mean
	}
	return max(mean, l.Rows.Bytes()/max(l.Rows.Len(), 1))
}

// endless is the value of cut.positions if only rows matter, and of cut.rows if only positions do.
const endless = math.MaxInt

// cuts ends batches at the ends of steps if the rows of a step are contiguous, unless a step is too long: so a client need not
// assemble a step from two batches. If rows are shuffled over nodes, or mixed with those of other caches, the client has to anyway, and
// all batches have the same length instead: for a message longer than all earlier ones an allocator maps new memory, and with batches
// cut at steps, clumps of 64 rows led to lengths that differed by half. mean is the size of a row, length the target for a batch and
// longest its maximum, in bytes.
func (l Lent) cuts(mean, length, longest int64) cut {
	lo, hi := epoch.Shard(l.Ticket.Share.Rank, l.Ticket.Share.World, l.Ticket.Epoch.GlobalBatch)
	step := hi - lo
	all, shuffled := int64(l.Ticket.Epoch.Rows), l.Ticket.Epoch.Shuffle
	if l.Ticket.Split != nil {
		all, shuffled = l.Ticket.Filtered, shuffled || l.Ticket.Split.Shuffle
	}
	scattered := l.Ticket.Mix != nil || shuffled && l.Ticket.Bounds.Len() < all
	rows := func(bytes int64) uint64 { return uint64(min(max(bytes/max(mean, 1), 1), mostRows)) }
	most := rows(length)
	if scattered || step == 0 || step > rows(longest) {
		return cut{positions: endless, rows: int(most)}
	}
	return cut{positions: max(most/step, 1) * step, rows: endless}
}
