// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/internal/watch"
)

func TestReadersAreListedUpToALimit(t *testing.T) {
	var r Readers
	var all []protocol.Reader
	for rank := range 100 {
		all = append(all, protocol.Reader{Client: "10.0.0.1", Rank: rank, World: 100})
	}
	r.Update(time.Unix(1000, 0), all)
	table := r.Table()
	if len(table.Rows) != protocol.MaxReaders {
		t.Errorf("%d readers are listed, want %d", len(table.Rows), protocol.MaxReaders)
	}
}

func TestLoading(t *testing.T) {
	done := func(i int) bool { return i < 2 || i == 5 }
	want := []watch.Piece{{From: 0, To: .25, Tone: watch.Good}, {From: .625, To: .75, Tone: watch.Good}}
	if diff := cmp.Diff(want, Loading(3, 8, done).Strip); diff != "" {
		t.Error(diff)
	}
	many := Loading(1, 1000, func(i int) bool { return i == 0 })
	if diff := cmp.Diff([]watch.Piece{{From: 0, To: .01, Tone: watch.Busy}}, many.Strip); diff != "" {
		t.Error(diff)
	}
}
