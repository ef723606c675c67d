// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/sweep"
)

// scattered reports whether a stream's rows are spread over the chunks so that reading the chunks of each message would read far more than it
// sends: it compares the first runs with the chunks that have them.
func (l Lent) scattered() (bool, error) {
	if l.Sweep == nil || l.Rows.Len() == 0 {
		return false, nil
	}
	walk, err := l.walk()
	if err != nil {
		return false, err
	}
	var runs [blockRuns]rows.Run
	n, _ := walk.Next(runs[:], endless)
	sent, chunks := int64(0), map[int]bool{}
	for _, q := range runs[:n] {
		sent += int64(q.Rows)
		for row := int64(q.First); row < int64(q.First+q.Rows); {
			chunk, _, end := l.Rows.Chunks().Find(row)
			chunks[chunk] = true
			row = end
		}
	}
	each := l.Rows.Len() / int64(l.Rows.Chunks().Len())
	return int64(len(chunks)-2)*each > 2*sent, nil
}

// parts returns the walk that a sweep makes over the rows of a stream, whose parts end where the stream's messages do. It begins with the runs in
// unsent and continues with walk. The first message ends after left positions of walk.
func parts(walk walk, every cut, unsent []rows.Run, left uint64) sweep.Walk {
	var list []rows.Run // of the call before
	return func(most int) (runs []rows.Run, ends []int, last bool) {
		defer func() { list = runs }()
		count := 0
		for _, run := range unsent {
			count += int(run.Rows)
		}
		for runs, unsent = append(list[:0], unsent...), nil; ; {
			size, positions := blockRuns, left
			if count < most { // a run has one row or more, and a position one row or none: without both bounds a part could get far more than most rows
				size, positions = min(size, most-count), min(positions, uint64(most-count))
			}
			runs = slices.Grow(runs, size)
			block := runs[len(runs) : len(runs)+size]
			n, passed := walk.Next(block, positions)
			if passed == 0 {
				return runs, append(ends, count), true
			}
			for i := range block[:n] {
				count += int(block[i].Rows)
			}
			runs, left = runs[:len(runs)+n], left-passed
			if left == 0 {
				left, ends = every.positions, append(ends, count)
			}
			if count >= most && (left == every.positions || every.positions == endless) {
				return runs, append(ends, count), false
			}
		}
	}
}

// sweepKey names the sequence of a ticket, for sweep.Open.
func sweepKey(t protocol.Ticket) string {
	t.Incarnation, t.Expires, t.Columns, t.Early = "", 0, nil, false // parts have all columns
	key, err := json.Marshal(t)
	if err != nil {
		return "" // Open then prepares no parts of the next epoch
	}
	return string(key)
}

// following is the stream of the next epoch, which the client will probably ask for.
func (l Lent) following() (next Lent, ok bool) {
	next = l
	next.Ticket.Epoch.Number++
	next.Ticket.Share.StartStep = 0
	return next, l.Ticket.Kind == protocol.Epoch && l.Ticket.Mix == nil
}

// swept streams rows that lie scattered over chunks of which not all are in memory.
func (s *sender) swept(length int64) error {
	walk, err := s.walk()
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "ticket: %v", err)
	}
	every := s.sweptCuts(length)
	return s.sweptBy(sweepKey(s.Ticket), parts(walk, every, nil, every.positions), every)
}

// sweptCuts says where the messages of swept end.
func (s *sender) sweptCuts(length int64) cut {
	most := min(mostBytes, s.most)
	return s.cuts(s.meanBytes(), min(length, most/16*15), most)
}

// sweptBy sends the rest of a stream's rows, by the sweep. key is that of Sweep.Open.
func (s *sender) sweptBy(key string, rest sweep.Walk, every cut) error {
	most := min(mostBytes, s.most)
	stream := s.Sweep.Open(key, rest)
	defer stream.Close()
	if next, ok := s.following(); ok {
		if walk, err := next.walk(); err == nil {
			stream.Then(sweepKey(next.Ticket), parts(walk, every, nil, every.positions))
		}
	}
	for {
		s.turn.Release() // the disk may take long
		part, err := stream.Next(s.stream.Context())
		if part == nil || err != nil {
			return sweepRefusal(err)
		}
		if err := s.sendPart(stream, part, every, int(most)); err != nil {
			return err
		}
	}
}

// sweepRefusal is the status of an error of a sweep.
func sweepRefusal(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sweep.ErrClosed):
		return errReplaced
	}
	return refusal(err, "read rows from spill files")
}

// sendPart sends the rows of a part and releases it.
func (s *sender) sendPart(stream *sweep.Stream, part *sweep.Part, every cut, most int) error {
	defer part.Release()
	runs, sent := part.Runs, 0
	for _, end := range part.Ends {
		for sent < end {
			message, rest, err := s.gatherFrom(part.Rows, runs, min(end-sent, every.rows), most)
			if err != nil {
				return refusal(err, "gather %d rows", min(end-sent, every.rows))
			}
			runs, sent = rest, sent+message.Rows
			if err := s.batch(message); err != nil {
				return err
			}
			stream.Extend()
		}
	}
	return nil
}

// collect returns the rows of runs as a part, which the caller releases by calling done.
func (s *sender) collect(runs []rows.Run) (part *sweep.Part, done func(), err error) {
	stream := s.Sweep.Open("", func(int) ([]rows.Run, []int, bool) { return runs, nil, true })
	s.turn.Release()
	part, err = stream.Next(s.stream.Context())
	if err != nil {
		stream.Close()
		return nil, nil, sweepRefusal(err)
	}
	return part, func() { part.Release(); stream.Close() }, nil
}

// ahead reads the next chunks of a stream that reads whole chunks, while it sends messages of the one before.
type ahead struct {
	rows    *rows.Rows
	started [aheadChunks]int // chunk numbers, plus 1
	reading sync.WaitGroup
	places  chan struct{}
}

// aheadChunks is the number of chunks that are read ahead.
const aheadChunks = 3

func newAhead(r *rows.Rows) *ahead { return &ahead{rows: r, places: make(chan struct{}, aheadChunks)} }

// of starts to read the chunks of the next runs, as far as they are among the first aheadChunks+1.
func (a *ahead) of(runs []rows.Run) {
	if a.rows == nil || !a.rows.IsStored() {
		return
	}
	found := 0
	for _, q := range runs {
		for row := int64(q.First); row < int64(q.First+q.Rows); {
			chunk, _, end := a.rows.Chunks().Find(row)
			row = end
			if a.started[found%aheadChunks] != chunk+1 && !slices.Contains(a.started[:], chunk+1) && !a.start(chunk) {
				return
			}
			if found++; found > aheadChunks {
				return
			}
		}
	}
}

// start starts to read a chunk, if there is a place.
func (a *ahead) start(chunk int) bool {
	select {
	case a.places <- struct{}{}:
	default:
		return false
	}
	copy(a.started[1:], a.started[:])
	a.started[0] = chunk + 1
	a.reading.Go(func() {
		defer func() { <-a.places }()
		a.rows.Chunks().Prefetch(chunk)
	})
	return true
}

func (a *ahead) wait() { a.reading.Wait() }
