// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"encoding/binary"
	"sort"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/head/packing"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// measureWait is how long a data node may take for an answer about lengths: it may have to read those of all its rows.
const measureWait = 30 * time.Second

// measures asks the data nodes of a cluster for lengths of columns.
type measures struct{ *cluster }

// lengths returns the rows at [from, to) of the sequence of a request, and the lengths of a column, by its index.
func (c measures) lengths(ctx context.Context, v *view, r protocol.Request, column int, from, to uint64) (s packing.Sequence, err error) {
	e := r.Epoch
	e.Rows = uint64(v.rows)
	ticket := protocol.Ticket{Kind: protocol.Epoch, Epoch: e, Share: epoch.Share{World: 1, Workers: 1, StartStep: from}}
	if s.Rows, err = rowsOf(ticket, to-from); err != nil {
		return s, err
	}
	filtered := s.Rows
	if v.selection != nil && v.selection.Split != nil {
		if filtered, err = rowsOf((&answer{view: v}).within(ticket), to-from); err != nil {
			return s, err
		}
	}
	owners, counts := owners(filtered, v.places.bounds)
	answers, err := c.measureAll(ctx, v, column, peer.Lengths{Ticket: ticket, Positions: to - from}, func(node int) bool { return counts[node] > 0 })
	if err != nil {
		return s, err
	}
	for node, count := range counts {
		if got := len(answers[node].Lengths); got != 4*count {
			return s, status.Errorf(codes.Internal, "data node %d sent %d bytes of lengths for %d rows", node, got, count)
		}
	}
	s.Lengths = make([]int32, len(owners))
	for i, node := range owners {
		left := answers[node].Lengths
		s.Lengths[i] = int32(binary.LittleEndian.Uint32(left))
		answers[node].Lengths = left[4:]
		if s.Lengths[i] < 0 {
			return s, status.Errorf(codes.Internal, "data node %d sent a length of %d", node, s.Lengths[i])
		}
	}
	return s, nil
}

// longer counts the rows of a request that have more than most tokens.
func (c measures) longer(ctx context.Context, v *view, column int, most int32) (found packing.Long, err error) {
	ticket := protocol.Ticket{Kind: protocol.Shard, Rows: assign.Bounds{0, v.rows}}
	answers, err := c.measureAll(ctx, v, column, peer.Lengths{Ticket: ticket, Positions: uint64(v.rows), Over: most}, func(node int) bool { return v.places.bounds[node].Len() > 0 })
	if err != nil {
		return found, err
	}
	for node, a := range answers {
		if found.Count == 0 && a.Long > 0 {
			found.Row, found.Length = v.places.bounds[node][0]+a.First, a.Length
			if v.selection != nil && v.selection.Split != nil {
				found.Row = -1
			}
		}
		found.Count += a.Long
	}
	return found, nil
}

// rowsOf returns the rows at the next positions of a ticket's sequence.
func rowsOf(t protocol.Ticket, positions uint64) ([]int64, error) {
	cursor, err := t.Cursor()
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	rows := make([]int64, 0, positions)
	var runs [512]epoch.Run
	for positions > 0 {
		n, passed := cursor.Next(runs[:], positions)
		if passed == 0 {
			return rows, nil
		}
		for _, r := range runs[:n] {
			for row := range r.Rows {
				rows = append(rows, int64(r.First+row))
			}
		}
		positions -= passed
	}
	return rows, nil
}

// owners returns the data node of each row, and how many rows each node has.
func owners(rows []int64, bounds []assign.Bounds) (nodes []int32, counts []int) {
	nodes, counts = make([]int32, len(rows)), make([]int, len(bounds))
	for i, row := range rows {
		node := sort.Search(len(bounds), func(n int) bool { return bounds[n][1] > row })
		nodes[i] = int32(node)
		counts[node]++
	}
	return nodes, counts
}

// measureAll asks some of the data nodes for lengths of a column.
func (c measures) measureAll(ctx context.Context, v *view, column int, ask peer.Lengths, of func(node int) bool) ([]peer.Measured, error) {
	a := answer{view: v, columns: []int{column}}
	for node := range v.nodes {
		if of(node) {
			a.add(node, 0, ask.Ticket)
		}
	}
	answers := make([]peer.Measured, len(v.nodes))
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range a.shares {
		group.Go(func() (err error) {
			own := ask
			own.Ticket = part.ticket
			answers[part.node], err = c.measure(ctx, part.node, own)
			return err
		})
	}
	return answers, group.Wait()
}

// measure asks a data node, and waits for its answer.
func (c measures) measure(ctx context.Context, node int, ask peer.Lengths) (peer.Measured, error) {
	answer := make(chan peer.Measured, 1)
	c.mu.Lock()
	s := c.members[node].session
	if s == nil {
		c.mu.Unlock()
		return peer.Measured{}, status.Errorf(codes.Unavailable, "data node %d is not connected", node)
	}
	s.lengths++
	ask.ID = s.lengths
	s.measured[ask.ID] = answer
	s.tell(peer.ToNode{Lengths: &ask})
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(s.measured, ask.ID)
	}()
	timer := time.NewTimer(measureWait)
	defer timer.Stop()
	select {
	case m := <-answer:
		if m.Reason != "" {
			return m, status.Errorf(codes.Unavailable, "data node %d: %s", node, m.Reason)
		}
		return m, nil
	case <-s.closed:
		return peer.Measured{}, status.Errorf(codes.Unavailable, "data node %d left", node)
	case <-timer.C:
		return peer.Measured{}, status.Errorf(codes.Unavailable, "data node %d did not send lengths within %s", node, measureWait)
	case <-ctx.Done():
		return peer.Measured{}, status.FromContextError(ctx.Err()).Err()
	}
}
