// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

func TestReaders(t *testing.T) {
	var r streams
	now := time.Unix(1000, 0)
	key := readerKey{job: "trial-7", client: "10.0.0.1", kind: protocol.Epoch, rank: 1, world: 2}
	waits := &sender{}
	waits.waiting.Store(now.Add(-time.Second).UnixNano())
	a, b := r.begin(key, waits, now), r.begin(key, &sender{}, now) // two workers of a rank
	if a.reader != b.reader {
		t.Fatal("the streams of one rank are two readers")
	}
	a.message(sent{rows: 10, bytes: 80, work: 2 * time.Millisecond})
	b.wait(forClient, 5*time.Millisecond)
	b.wait(forTurn, time.Hour)
	total, list := r.list(now, 10)
	want := protocol.Traffic{Streams: 2, Rows: 10, Bytes: 80, ClientMS: 1005, NodeMS: 2}
	if diff := cmp.Diff([]protocol.Reader{{Job: "trial-7", Client: "10.0.0.1", Kind: protocol.Epoch, Rank: 1, World: 2, Traffic: want}}, list); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, total); diff != "" {
		t.Error(diff)
	}
	a.end(nil)
	b.end(nil)
	later := time.Now()
	if _, list := r.list(later, 10); len(list) != 1 || list[0].Streams != 0 {
		t.Errorf("after the streams have ended: %v", list)
	}
	total, list = r.list(later.Add(readerKept), 10)
	if len(list) != 0 || total.Rows != 10 || total.Streams != 0 {
		t.Errorf("a minute later: %v, in all %v", list, total)
	}
}

func TestReadersAreBounded(t *testing.T) {
	var r streams
	now := time.Unix(1000, 0)
	for i := range 2 * maxReaders {
		r.begin(readerKey{client: fmt.Sprint(i)}, &sender{}, now).message(sent{bytes: int64(i)})
	}
	_, list := r.list(now, 2*maxReaders)
	if len(list) != maxReaders {
		t.Errorf("%d readers, want %d", len(list), maxReaders)
	}
	if list[0].Client != "others" || list[0].Streams != maxReaders+1 {
		t.Errorf("the rest is %v", list[0])
	}
	if _, few := r.list(now, 3); len(few) != 3 {
		t.Errorf("%d readers, want the 3 with the most bytes", len(few))
	}
}
