// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/role"
)

// TestReasonsAreShort checks that a reason names three data nodes and counts the others: clients such as pyarrow don't read a status of more
// than 8 KiB, and report another error instead.
func TestReasonsAreShort(t *testing.T) {
	const nodes = 1000
	loading := func(t *testing.T, joined int) (*cluster, []*fakeNode) {
		c := newCluster(t, nodes)
		c.setPlan(splits10(t, nodes, nodes), start)
		all := make([]*fakeNode, joined)
		for i := range all {
			all[i] = &fakeNode{t: t, c: c, index: i, incarnation: fmt.Sprint("first", i)}
			all[i].join(nil)
		}
		return c, all
	}
	tests := []struct {
		name string
		of   func(t *testing.T) *cluster
		want string
	}{
		{"lost", func(t *testing.T) *cluster {
			c, all := readyCluster(t, nodes, nodes)
			for _, n := range all[1:] {
				c.leave(n.s, "connection lost", start)
			}
			return c
		}, "data node 3 (host:1) is gone since 2027-01-15T08:00:00Z: connection lost; and 996 more data nodes"},
		{"absent", func(t *testing.T) *cluster { c, _ := loading(t, 1); return c }, "waiting for data node 1, 2, 3 and 996 more to join"},
		{"in trouble", func(t *testing.T) *cluster {
			c, all := loading(t, nodes)
			for _, n := range all {
				n.send(peer.ToHead{Progress: &peer.Progress{Plan: c.data.plan.fingerprint, Trouble: strings.Repeat("the störe is away ", 100)}})
			}
			return c
		}, "data node 0: the störe is away"},
		{"unheard", func(t *testing.T) *cluster {
			c := newCluster(t, nodes)
			c.planningFailed("no such table", start)
			return c
		}, "waiting for data node 0, 1, 2 and 997 more, which may hold the rows"},
		{"never joined", func(t *testing.T) *cluster {
			c, _ := loading(t, 5)
			c.tick(start.Add(time.Hour))
			return c
		}, "5 of 1000 data nodes joined within 1m0s; missing: 5, 6, 7 and 992 more. Start them"},
		{"failed", func(t *testing.T) *cluster {
			c, all := loading(t, 1)
			all[0].send(peer.ToHead{Failed: &peer.Failed{Plan: c.data.plan.fingerprint, Reason: strings.Repeat("x", 5000)}})
			return c
		}, "data node 0 (host:1): xxx"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.of(t)
			if s := c.status("t"); len(s.Reason) > protocol.MaxReason || !strings.Contains(s.Reason, tt.want) {
				t.Errorf("a reason of %d bytes, want at most %d with %q: %.300s", len(s.Reason), protocol.MaxReason, tt.want, s.Reason)
			}
			_, err := c.view(false)
			if text := status.Convert(err).Message(); status.Code(err) != codes.Unavailable || len(text) > protocol.MaxReason+50 {
				t.Errorf("%s with %d bytes, want Unavailable with about %d", status.Code(err), len(text), protocol.MaxReason)
			}
		})
	}
}

// TestPageShowsFiftyNodes checks that the page of a large cache shows those data nodes that are not ready, and few others.
func TestPageShowsFiftyNodes(t *testing.T) {
	c, all := readyCluster(t, 1000, 1000)
	for _, i := range []int{7, 500, 999} {
		c.leave(all[i].s, "connection lost", start)
	}
	v := (&pageSource{head: &Head{cluster: c, cfg: Config{Config: role.Config{Budget: offheap.NewBudget(1 << 30)}}}}).view(c.status("t"))
	rows := v.Tables[0].Rows
	if len(rows) != mostShown || len(v.Meters) > mostShown+1 || len(v.Waits) != 3 {
		t.Fatalf("%d nodes, %d meters, %d waits, want %d, about as many and 3", len(rows), len(v.Meters), len(v.Waits), mostShown)
	}
	for i, want := range []string{"7", "500", "999", "0"} {
		if got := rows[i][0].Text; got != want {
			t.Errorf("row %d is of data node %s, want %s", i, got, want)
		}
	}
	if note := v.Tables[0].Note; !strings.Contains(note, "50 of 1000 data nodes") {
		t.Errorf("note %q doesn't say that nodes are left out", note)
	}
}
