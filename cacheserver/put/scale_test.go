// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package put

import (
	"fmt"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// BenchmarkParts is the head's work for each part: it must not grow with the number of parts. "lost" is that of a data node which is replaced, and gets its
// parts from the other one.
func BenchmarkParts(b *testing.B) {
	for _, n := range []int{5_000, 10_000, 20_000, 40_000} {
		b.Run(fmt.Sprint(n, " staged and published"), func(b *testing.B) {
			for range b.N {
				replicated(b, n)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/part")
		})
		b.Run(fmt.Sprint(n, " lost"), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				c := replicated(b, n)
				b.StartTimer()
				replace(b, c, n)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/part")
		})
	}
}

func staged(b *testing.B, c *Catalog, node int, m peer.Staged) {
	b.Helper()
	if err := c.Staged(node, m, start); err != nil {
		b.Fatal(err)
	}
}

// publishOrders answers the orders to publish, and returns how many there were.
func publishOrders(b *testing.B, c *Catalog) (n int) {
	b.Helper()
	for _, o := range c.Orders() {
		if p := o.Message.Publish; p != nil {
			n++
			staged(b, c, o.Node, peer.Staged{ID: p.ID, Has: &peer.HeldRows{Publication: p.As, ColumnBytes: make([]int64, 1), Fits: make([]byte, 1)}})
		}
	}
	return n
}

// replicated returns a catalog with a dataset of n parts, each of which is on both data nodes.
func replicated(b *testing.B, n int) *Catalog {
	b.Helper()
	c := New(2)
	for node := range 2 {
		c.Join(node)
		staged(b, c, node, peer.Staged{All: true})
	}
	of := spec("put-1", "a", protocol.PutCreate, n, 2)
	of.Keep = protocol.KeepReplica
	if _, err := c.Begin(of, start); err != nil {
		b.Fatal(err)
	}
	for number := range n {
		for _, node := range []int{of.Copy(number), of.Node(number)} {
			staged(b, c, node, peer.Staged{ID: of.ID, Parts: []protocol.PutPart{part(number, 1)}})
		}
	}
	c.Orders()
	if err := c.Publish(of.ID, nil, start); err != nil {
		b.Fatal(err)
	}
	publishOrders(b, c)
	if _, err := c.Find("a"); err != nil {
		b.Fatal(err)
	}
	return c
}

// replace joins a node 0 without parts, to which the other one sends them one by one, copies first.
func replace(b *testing.B, c *Catalog, n int) {
	b.Helper()
	of := c.puts["put-1"]
	c.Join(0)
	staged(b, c, 0, peer.Staged{All: true})
	c.Orders()
	for number := n - 1; number >= 0; number-- {
		staged(b, c, 0, peer.Staged{ID: of.ID, Parts: []protocol.PutPart{part(number, 1)}})
	}
	if publishOrders(b, c) != 1 {
		b.Fatal("node 0 was not asked once to publish")
	}
	if _, err := c.Find("a"); err != nil {
		b.Fatal(err)
	}
}
