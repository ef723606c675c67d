// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// Progress is the progress of loading an assignment: the splits in memory, and why others are being retried. The zero value is ready
// to use; it is safe for concurrent use.
type Progress struct {
	mu    sync.Mutex
	done  []peer.SplitDone // in the order of loading
	bytes int64            // bytes in memory: the sum over done
	rows  int64            // likewise
	again int64            // see Again
	waits map[int]string   // why splits are being retried, by index in the assignment; at Whole, why the whole assignment is
}

// Whole is the index for problems that don't concern a single split.
const Whole = -1

// add records a loaded split, which will then be reported.
func (p *Progress) add(done peer.SplitDone) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += done.Bytes
	p.rows += done.Rows
	p.done = append(p.done, done)
}

// Report returns the splits loaded after the first n, and the bytes in memory.
func (p *Progress) Report(n int) ([]peer.SplitDone, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done[n:len(p.done):len(p.done)], p.bytes
}

// Loaded returns the number of splits, rows and bytes in memory.
func (p *Progress) Loaded() (splits int, rows, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.done), p.rows, p.bytes
}

// Again is the memory that is set aside for decoding a split again, whichever it is: a chunk of it may turn out to be broken in its spill file.
func (p *Progress) Again() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.again
}

func (p *Progress) setAgain(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.again = n
}

// Note records why split index is being retried; the empty string clears that.
func (p *Progress) Note(index int, trouble string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if trouble == "" {
		delete(p.waits, index)
		return
	}
	if p.waits == nil {
		p.waits = map[int]string{}
	}
	p.waits[index] = trouble
}

// Trouble returns the first reason recorded, and the number of others; empty if there is none.
func (p *Progress) Trouble() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waits) == 0 {
		return ""
	}
	first := slices.Min(slices.Collect(maps.Keys(p.waits)))
	if more := len(p.waits) - 1; more > 0 {
		return fmt.Sprintf("%s (and %d more splits)", p.waits[first], more)
	}
	return p.waits[first]
}
