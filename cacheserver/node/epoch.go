// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/chunk"
	"github.com/kubeflow/datacache/cacheserver/order"
)

// epoch streams this node's share of a rank's sequence, in sequence order.
func (s *sender) epoch(l serving, p *chunk.Projection) error {
	cursor, err := order.NewCursor(l.ticket.Epoch, l.ticket.Share)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "ticket: %v", err)
	}
	g := newGatherer(s, l, p)
	var block [4096]uint64
	for {
		n := cursor.Next(block[:])
		if n == 0 {
			return g.finish()
		}
		if err := s.stream.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		if err := g.add(block[:n]); err != nil {
			return err
		}
	}
}

// gatherer turns a node's rows of an epoch into batches. Rows that lie one after the other for long enough
// are sent as they lie; the others are collected until they fill a batch.
type gatherer struct {
	sender     *sender
	lent       serving
	projection *chunk.Projection
	full       int      // rows of about one full batch
	long       int64    // rows from which a run is sent as it lies
	run        [2]int64 // consecutive rows seen last, half-open
	rows       []int64  // collected before run
}

const (
	// gatherBytes is about how long a gathered batch is. A client that stops reading keeps two of them in memory.
	gatherBytes = 1 << 20
	// mostGathered bounds the rows that a stream collects, however narrow they are.
	mostGathered = 1 << 16
	// longestRun bounds the rows of a run before they are sent: later batches would come late.
	longestRun = 1 << 26
)

func newGatherer(s *sender, l serving, p *chunk.Projection) *gatherer {
	mean := max(l.rows.Bytes()/max(l.rows.Len(), 1), 1)
	full := min(max(gatherBytes/mean, 1), mostGathered)
	return &gatherer{sender: s, lent: l, projection: p, full: int(full), long: max(full/4, 2)}
}

// add keeps those of the epoch's rows that this node holds.
func (g *gatherer) add(rows []uint64) error {
	bounds := g.lent.ticket.Bounds
	for _, row := range rows {
		local := int64(row) - bounds[0]
		if int64(row) >= bounds[1] || local < 0 {
			continue
		}
		if local == g.run[1] && local-g.run[0] < longestRun {
			g.run[1]++
			continue
		}
		if err := g.endRun(); err != nil {
			return err
		}
		g.run = [2]int64{local, local + 1}
	}
	return nil
}

// endRun sends the current run as it lies or adds it to the collected rows.
func (g *gatherer) endRun() error {
	lo, hi := g.run[0], g.run[1]
	g.run = [2]int64{}
	if hi-lo >= g.long {
		if err := g.flush(); err != nil {
			return err
		}
		return g.sender.between(g.lent, g.projection, lo, hi)
	}
	for row := lo; row < hi; row++ {
		g.rows = append(g.rows, row)
	}
	for len(g.rows) >= g.full {
		if err := g.send(); err != nil {
			return err
		}
	}
	return nil
}

// finish sends what is left.
func (g *gatherer) finish() error {
	if err := g.endRun(); err != nil {
		return err
	}
	return g.flush()
}

// flush sends all that was collected.
func (g *gatherer) flush() error {
	for len(g.rows) > 0 {
		if err := g.send(); err != nil {
			return err
		}
	}
	return nil
}

// send sends as many of the collected rows as fit one batch; the others begin the next.
func (g *gatherer) send() error {
	message, n, err := g.lent.rows.Gather(g.projection, g.rows, gatherBytes)
	if err != nil {
		return status.Errorf(codes.Internal, "gather %d rows: %v", len(g.rows), err)
	}
	if err := g.sender.batch(message); err != nil {
		return err
	}
	g.rows = append(g.rows[:0], g.rows[n:]...)
	return nil
}
