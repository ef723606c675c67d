// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/watch"
)

func TestWhoWaits(t *testing.T) {
	// Four readers for 30 seconds, each with two streams, of two data nodes: milliseconds blocked and at work a second and stream.
	tests := []struct {
		client              string
		streams             int
		rows, blocked, work int64
		want                string
	}{
		{"10.0.0.1", 1, 100, 900, 50, "the cache waits for the client"},
		{"10.0.0.2", 1, 100, 100, 800, "the client waits for the cache"},
		{"10.0.0.3", 1, 0, 0, 0, "idle"},
		{"10.0.0.4", 1, 100, 200, 200, "neither, much"},
		{"10.0.0.5", 0, 100, 900, 0, "finished"},
	}
	var r Readers
	begin := time.Unix(1000, 0)
	for s := range int64(30) {
		var all []protocol.Reader
		for _, tt := range tests {
			one := protocol.Reader{Client: tt.client, Kind: protocol.Epoch, World: 4, Traffic: protocol.Traffic{
				Streams: tt.streams, Rows: s * tt.rows, Bytes: s * tt.rows * 8, ClientMS: s * tt.blocked, NodeMS: s * tt.work,
			}}
			all = append(all, one, one) // of two data nodes
		}
		r.Update(begin.Add(time.Duration(s)*time.Second), all)
	}
	got := map[string][2]string{}
	for _, row := range r.Table().Rows {
		got[row[2].Text] = [2]string{row[5].Text, row[len(row)-1].Text}
	}
	want := map[string][2]string{}
	for _, tt := range tests {
		want[tt.client] = [2]string{watch.FormatCount(float64(2 * tt.rows)), tt.want}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	r.Update(begin.Add(time.Minute), nil)
	if rows := r.Table().Rows; len(rows) > 0 {
		t.Errorf("readers that left are listed: %v", rows)
	}
}

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
