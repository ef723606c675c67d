// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// TestClientsDoNotDisplaceNodes checks that data nodes stay joined when clients, such as 5,000 ranks that ask at once, take all memory that
// the head has for them.
func TestClientsDoNotDisplaceNodes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := config{Nodes: 2, Splits: 10}
	budget := offheap.NewBudget(16 << 20)
	h := proctest.RunServer(t, func(context.Context) (*head.Head, error) {
		return head.New(head.Config{Nodes: c.Nodes, NodeTimeout: time.Minute, Config: role.Config{
			Flight: listener, Source: table{c}, Store: objstore.New(objstore.Config{}), Secret: "secret", Budget: budget,
			Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(), Grace: time.Millisecond,
		}})
	})
	nodes := startStubs(t, c.Nodes, protocol.MaxReaders, &process{flight: listener.Addr().String()})
	for h.Report().State != protocol.StateReady {
		time.Sleep(10 * time.Millisecond)
	}
	taken := int64(0)
	for n := budget.Limit(); n > 0; n /= 2 {
		for budget.Clients().Reserve(n) == nil {
			taken += n
		}
	}
	before := nodes.beats.Load()
	for nodes.beats.Load() < before+6 {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(peer.HeartbeatEvery)
	if s := h.Report(); s.State != protocol.StateReady {
		t.Errorf("clients took %d bytes, and the cache is %s: %s", taken, s.State, s.Reason)
	}
	budget.Clients().Release(taken)
}
