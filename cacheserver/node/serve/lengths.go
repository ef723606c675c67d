// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
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
func (l Lent) Lengths(clients offheap.Clients, positions uint64, use func([]int32)) error {
	walk, err := l.walk()
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "ticket: %v", err)
	}
	memory, err := clients.Allow(lengthMemory)
	if err != nil {
		return refusal(err, "no memory to read lengths")
	}
	defer memory.Close()
	columns := l.Columns.Within(memory)
	runs := make([]rows.Run, 0, min(lengthRuns, positions+blockRuns))
	for positions > 0 {
		n, passed := walk.Next(runs[len(runs):len(runs)+blockRuns], positions)
		runs, positions = runs[:len(runs)+n], positions-passed
		if passed > 0 && positions > 0 && len(runs)+blockRuns <= cap(runs) {
			continue
		}
		if err := l.lengths(columns, runs, use); err != nil {
			return refusal(err, "read lengths")
		}
		runs = runs[:0]
		if passed == 0 {
			break
		}
	}
	return nil
}

// lengths calls use with the lengths of all rows of runs.
func (l Lent) lengths(columns *rows.Projection, runs []rows.Run, use func([]int32)) error {
	count := 0
	for _, run := range runs {
		count += int(run.Rows)
	}
	for count > 0 {
		message, left, err := l.Rows.Gather(columns, runs, count, lengthBytes)
		if err != nil {
			return err
		}
		use(int32s(slices.Concat(message.Body...)[:4*message.Rows]))
		count, runs = count-message.Rows, left
		message.Release()
	}
	return nil
}

func int32s(data []byte) []int32 {
	out := make([]int32, len(data)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return out
}
