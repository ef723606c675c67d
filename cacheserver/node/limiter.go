// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"runtime"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/source"
)

const (
	// coreBytes is how much memory decoding may take for each core.
	coreBytes = 32 << 20
	// spareBytes is what all decoding together may take beside it: a process needs less than 64 MiB, and this is what is left.
	spareBytes = 24 << 20
	// keptBytes is how much of a core's share stays mapped for the next row group.
	keptBytes = 28 << 20
)

// DecodeLimiter bounds how many row groups are decoded at the same time: one a core, and as many as fit 32 MiB a core of memory that
// decoding takes beside the rows. A row group that needs more than all of it is decoded alone. It also owns the buffers that row groups are
// decoded in. The nodes of a process share one. It is safe for concurrent use; make it with NewDecodeLimiter.
type DecodeLimiter struct {
	cores    int
	capacity int64
	buffers  *source.Buffers

	mu      sync.Mutex
	changed *sync.Cond
	used    int64
	running int // row groups being decoded
	loads   int // assignments being loaded
}

// NewDecodeLimiter makes one for the cores of this process.
func NewDecodeLimiter() *DecodeLimiter {
	cores := runtime.GOMAXPROCS(0)
	w := &DecodeLimiter{cores: cores, capacity: int64(cores)*coreBytes + spareBytes, buffers: source.NewMappedBuffers(int64(cores) * keptBytes)}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// load counts an assignment that is being loaded until done, which frees the buffers after the last one.
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

// begin waits until n bytes may be used; done gives them back. Every begin ends, because those before it do.
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
