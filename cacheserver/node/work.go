// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"github.com/kubeflow/datacache/cacheserver/iceberg"
)

// workShare is the part of the table's bytes that decoding may take beside them, as a divisor.
const workShare = 10

// Work bounds the memory of row groups that are decoded at the same time to a tenth of what is being loaded,
// so that the peak of a load stays close to the table's own size. A row group that needs more is decoded
// alone. It also holds the buffers that they are decoded in. Nodes in one process share one Work. It is safe for concurrent use; make it with NewWork.
type Work struct {
	mu       sync.Mutex
	changed  *sync.Cond
	capacity int64
	used     int64
	buffers  iceberg.Buffers
}

// NewWork makes a bound without capacity: loads bring their own, see load.
func NewWork() *Work {
	w := &Work{}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// load adds what loading so many bytes may take; done takes it away again, and the buffers.
func (w *Work) load(bytes int64) (done func()) {
	share := bytes / workShare
	w.add(&w.capacity, share)
	return func() {
		w.add(&w.capacity, -share)
		w.buffers.Drop()
	}
}

// begin waits until n bytes may be used; done gives them back. Every begin ends, as others do.
func (w *Work) begin(n int64) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.used > 0 && w.used+n > w.capacity {
		w.changed.Wait()
	}
	w.used += n
	return func() { w.add(&w.used, -n) }
}

func (w *Work) add(to *int64, n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*to += n
	w.changed.Broadcast()
}
