// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// progress is how far the loading of an assignment is: which splits are in memory, and why others are tried again. The zero value is
// ready; it is safe for concurrent use.
type progress struct {
	mu    sync.Mutex
	done  []peer.SplitDone // in the order of loading
	bytes int64            // in memory: the sum over done
	waits map[int]string   // why splits, by index in the assignment, are tried again; at noSplit, why all of it waits
}

// noSplit stands for what is not a split's.
const noSplit = -1

// add makes a loaded split reportable.
func (p *progress) add(done peer.SplitDone) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += done.Bytes
	p.done = append(p.done, done)
}

// report gives the splits loaded since the first n, and the bytes in memory.
func (p *progress) report(n int) ([]peer.SplitDone, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done[n:len(p.done):len(p.done)], p.bytes
}

// note keeps why split index is tried again; the empty string ends that.
func (p *progress) note(index int, trouble string) {
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

// trouble is the first of what was noted, and how many more there are; empty if there is nothing.
func (p *progress) trouble() string {
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
