// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

const (
	// copyWait is how long a stream waits for memory to copy rows, and copyPoll is the polling interval.
	copyWait, copyPoll = 15 * time.Second, 20 * time.Millisecond
	// copyRest times the duration of a copy is the pause before the next one.
	copyRest = 2
	// copyOverhead is the memory of a copy for each of its chunks, besides the rows.
	copyOverhead = 512
)

// copy returns the rows of runs in memory of their own, and the runs in their numbers. The message that needs them could otherwise hold more chunks
// than fit in memory beside the splits that are loaded. One stream at a time copies, and then none for a while, as the load needs the disk too.
func (e *Early) copy(ctx context.Context, in *rows.Rows, runs []rows.Run) (out *rows.Rows, found []rows.Run, err error) {
	begin := time.Now()
	defer func() { time.AfterFunc(copyRest*time.Since(begin), func() { <-e.copying }) }()
	pieces := piecesOf(in, runs)
	mean, room := in.Bytes()/max(in.Len(), 1), int64(0)
	for _, group := range pieces {
		room += copyOverhead + in.Layout().Overhead()
		for _, piece := range group {
			room += int64(piece.Rows) * mean
		}
	}
	for end := time.Now().Add(copyWait); ; {
		var full *offheap.ExhaustedError
		out, err = e.copyIn(in, pieces, room)
		switch {
		case err == nil:
			return out, renumbered(in, runs, pieces), nil
		case !errors.As(err, &full) || time.Now().After(end):
			return nil, nil, err
		case full.Limit != e.budget.Limit(): // not the node's memory but room was too small: these rows are longer than the mean
			room *= 2
			continue
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(copyPoll):
		}
	}
}

// copyIn copies pieces of chunks into new rows. It reserves room bytes of the clients' memory for them, which releasing the rows gives back, and
// meanwhile the bytes of one chunk.
func (e *Early) copyIn(in *rows.Rows, pieces map[int][]rows.Run32, room int64) (_ *rows.Rows, err error) {
	clients, frameRoom := e.budget.Clients(), in.Chunks().Largest()
	if err := clients.Extend(room + frameRoom); err != nil {
		return nil, err
	}
	defer clients.Release(frameRoom)
	defer func() {
		if err != nil {
			clients.Release(room)
		}
	}()
	frame, err := in.NewFrame(offheap.NewBudget(frameRoom))
	if err != nil {
		return nil, err
	}
	defer frame.Close()
	arena := offheap.NewArena(offheap.NewBudget(room))
	defer arena.Release()
	var cuts []*rows.Chunk
	for _, chunk := range slices.Sorted(maps.Keys(pieces)) {
		if err := frame.Load(chunk, pieces[chunk]); err != nil {
			return nil, err
		}
		cut, err := frame.Cut(arena, pieces[chunk])
		if err != nil {
			return nil, err
		}
		cuts = append(cuts, cut)
	}
	out, err := rows.NewRows(in.Layout(), cuts)
	if err == nil {
		out.Finally(func() { clients.Release(room) })
	}
	return out, err
}

// piecesOf returns the rows of runs by chunk.
func piecesOf(in *rows.Rows, runs []rows.Run) map[int][]rows.Run32 {
	pieces := map[int][]rows.Run32{}
	eachPiece(in, runs, func(chunk int, piece rows.Run32) { pieces[chunk] = append(pieces[chunk], piece) })
	return pieces
}

// renumbered returns runs in the numbers of the rows of pieces, one chunk after the other.
func renumbered(in *rows.Rows, runs []rows.Run, pieces map[int][]rows.Run32) (found []rows.Run) {
	starts, next := map[int]uint64{}, uint64(0)
	for _, chunk := range slices.Sorted(maps.Keys(pieces)) {
		starts[chunk] = next
		for _, piece := range pieces[chunk] {
			next += uint64(piece.Rows)
		}
	}
	eachPiece(in, runs, func(chunk int, piece rows.Run32) {
		found = append(found, rows.Run{First: starts[chunk], Rows: uint64(piece.Rows)})
		starts[chunk] += uint64(piece.Rows)
	})
	return found
}

// eachPiece cuts runs where chunks end.
func eachPiece(in *rows.Rows, runs []rows.Run, use func(chunk int, piece rows.Run32)) {
	for _, run := range runs {
		for row, end := int64(run.First), int64(run.First+run.Rows); row < end; {
			chunk, lo, hi := in.Chunks().Find(row)
			n := min(end, hi) - row
			use(chunk, rows.Run32{First: uint32(row - lo), Rows: uint32(n)})
			row += n
		}
	}
}
