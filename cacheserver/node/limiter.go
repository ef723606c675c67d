// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"runtime"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/source"
)

const (
	// coreBytes is the memory for decoding per core.
	coreBytes = 32 << 20
	// spareBytes is the additional memory that all decoding together may use: what a process leaves unused of 64 MiB.
	spareBytes = 24 << 20
	// keptBytes is how much of a core's memory stays mapped for the next row group.
	keptBytes = 28 << 20
)

// DecodeLimiter bounds how many row groups are decoded concurrently: one per core, and as many as fit in 32 MiB per core of memory
// for decoding, not counting the rows. A row group that needs more than the total is decoded alone. It also owns the buffers for
// decoding. The nodes of a process share one. It is safe for concurrent use; make it with NewDecodeLimiter.
type DecodeLimiter struct {
	cores    int
	capacity int64
	buffers  *source.Buffers

	mu      sync.Mutex
	changed *sync.Cond
	used    int64
	running int // number of row groups being decoded
	loads   int // number of loads in progress
}

// NewDecodeLimiter returns a limiter for the cores of this process.
func NewDecodeLimiter() *DecodeLimiter {
	cores := runtime.GOMAXPROCS(0)
	w := &DecodeLimiter{cores: cores, capacity: int64(cores)*coreBytes + spareBytes, buffers: source.NewMappedBuffers(int64(cores) * keptBytes)}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// load registers a load until done is called, which frees the buffers after the last one.
func (w *DecodeLimiter) load() (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loads++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.loads--; w.loads == 0 {
			w.buffers.Close()
		}
	}
}

// begin waits until n bytes may be used; done returns them. Requests are served in order, so none starves.
func (w *DecodeLimiter) begin(n int64) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.running > 0 && (w.used+n > w.capacity || w.running == w.cores) {
		w.changed.Wait()
	}
	w.used += n
	w.running++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.used -= n
		w.running--
		w.changed.Broadcast()
	}
}
