// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"encoding/binary"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

const (
	// lengthRuns is how many runs are gathered at once, lengthBytes the length of a message of lengths, and lengthMemory what both need.
	lengthRuns   = 1 << 14
	lengthBytes  = 1 << 18
	lengthMemory = 4 << 20
)

// Lengths calls use with the lengths of the node's rows among the next positions of the ticket's sequence, in its order. The ticket's only
// column is one of lengths.
func (l Lent) Lengths(ctx context.Context, clients offheap.Clients, positions uint64, use func([]int32)) error {
	walk, err := l.walk()
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "ticket: %v", err)
	}
	memory, err := clients.Allow(lengthMemory)
	if err != nil {
		return refusal(err, "no memory to read lengths")
	}
	defer memory.Close()
	columns, walk := l.Columns.Within(memory), &bounded{walk, positions}
	if l.Sweep != nil {
		return l.sweptLengths(ctx, columns, walk, use)
	}
	for runs := make([]rows.Run, 0, lengthRuns); ; {
		n, passed := walk.Next(runs[len(runs):len(runs)+blockRuns], endless)
		runs = runs[:len(runs)+n]
		if passed > 0 && len(runs)+blockRuns <= cap(runs) {
			continue
		}
		if err := lengths(l.Rows, columns, runs, use); err != nil || passed == 0 {
			return err
		}
		runs = runs[:0]
	}
}

// sweptLengths is Lengths for rows of which not all are in memory.
func (l Lent) sweptLengths(ctx context.Context, columns *rows.Projection, walk walk, use func([]int32)) error {
	stream := l.Sweep.Open("", parts(walk, cut{positions: endless, rows: mostRows}, nil, endless))
	defer stream.Close()
	for {
		part, err := stream.Next(ctx)
		if part == nil || err != nil {
			return sweepRefusal(err)
		}
		err = lengths(part.Rows, columns, part.Runs, use)
		part.Release()
		if err != nil {
			return err
		}
	}
}

// lengths calls use with the lengths of all rows of runs.
func lengths(in *rows.Rows, columns *rows.Projection, runs []rows.Run, use func([]int32)) error {
	for count := total(runs); count > 0; {
		message, left, err := in.Gather(columns, runs, count, lengthBytes)
		if err != nil {
			return refusal(err, "read lengths")
		}
		use(int32s(slices.Concat(message.Body...)[:4*message.Rows]))
		count, runs = count-message.Rows, left
		message.Release()
	}
	return nil
}

// bounded is the first positions of a walk.
type bounded struct {
	walk
	left uint64
}

// Next implements walk.
func (b *bounded) Next(runs []rows.Run, positions uint64) (n int, passed uint64) {
	n, passed = b.walk.Next(runs, min(positions, b.left))
	b.left -= passed
	return n, passed
}

func int32s(data []byte) []int32 {
	out := make([]int32, len(data)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return out
}
