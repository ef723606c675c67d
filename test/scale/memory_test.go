// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/test/kit/deadline"
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
		return head.New(head.Config{Nodes: c.Nodes, NodeTimeout: 24 * time.Hour, Config: role.Config{
			Flight: listener, Source: table{c}, Store: objstore.New(objstore.Config{}), Secret: "secret", Budget: budget,
			Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(), Grace: time.Millisecond,
		}})
	})
	nodes := startStubs(t, c.Nodes, protocol.MaxReaders, &process{flight: listener.Addr().String()})
	deadline.Eventually(t, func() error {
		if s := h.Report(); s.State != protocol.StateReady {
			return fmt.Errorf("%s: %s", s.State, s.Reason)
		}
		return nil
	})
	taken := int64(0)
	for n := budget.Limit(); n > 0; n /= 2 {
		for budget.Clients().Reserve(n) == nil {
			taken += n
		}
	}
	joins, before := nodes.joins.Load(), nodes.beats.Load()
	deadline.Eventually(t, func() error {
		if n := nodes.beats.Load() - before; n < 8 { // a session that has no memory for the first ones ends before the last
			return fmt.Errorf("%d heartbeats since clients took the memory", n)
		}
		return nil
	})
	if s := h.Report(); s.State != protocol.StateReady || nodes.joins.Load() != joins {
		t.Errorf("clients took %d bytes, data nodes joined %d times again, and the cache is %s: %s", taken, nodes.joins.Load()-joins, s.State, s.Reason)
	}
	budget.Clients().Release(taken)
}
