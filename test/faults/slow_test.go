// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// TestHalfOfTheClientsStopReading opens 100 streams that are not read beyond their schema, while 100 other clients read the table
// twice. The others must get every row, and the memory for the stalled ones must be bounded.
func TestHalfOfTheClientsStopReading(t *testing.T) {
	const stalled, reading, shares = 100, 100, 50
	shuffled := epochOf(epoch.Epoch{Seed: 1, Shuffle: true, Clump: 1, GlobalBatch: 64, Tail: "keep"}, epoch.Share{World: 1, Workers: 1})
	tests := []struct {
		name    string
		request *flight.FlightDescriptor
		each    int64 // bytes that a stalled stream may use
	}{
		// Rows are not copied: only gRPC's buffers count.
		{"of shards", shardOf(0, 1), 1 << 20},
		// Gathered rows, in batches of about 1 MiB: the one that gRPC has and the next one.
		{"of epochs", shuffled, 2*(1<<20) + 1<<20},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := running(t, big(t), 2)
			c.servesAll(shares) // to allocate the memory of ordinary work before it is measured
			before := c.memory()

			ctx, cancel := context.WithCancel(deadline.Context(t))
			c.stall(ctx, test.request, stalled)
			if open := c.metric("datacache_streams"); open < stalled {
				t.Fatalf("%.0f streams are open, want %d", open, stalled)
			}
			took := c.memory() - before
			bound := stalled * test.each
			if raceEnabled {
				bound *= 5 // for the race detector's shadow memory
			}
			t.Logf("%d stalled clients took %d MB, bound %d MB", stalled, took>>20, bound>>20)
			if took > bound {
				t.Errorf("%d stalled clients took %d MB, want at most %d MB", stalled, took>>20, bound>>20)
			}

			c.readBeside(reading, shares)
			if open := c.metric("datacache_streams"); open < stalled {
				t.Errorf("%.0f stalled streams are left, want %d", open, stalled)
			}
			cancel()
			deadline.Eventually(t, func() error {
				if open := c.metric("datacache_streams"); open != 0 {
					return fmt.Errorf("%.0f streams are open after all clients have gone", open)
				}
				return nil
			})
			c.servesAll(1)
			for _, n := range c.nodes {
				n.signal(syscall.SIGTERM)
				if code := n.exit(); code != 0 {
					t.Errorf("%s ended with %d", n.name, code)
				}
			}
		})
	}
}

// stall opens n streams, spread over the nodes, that are not read beyond their schema until ctx ends.
func (c *cluster) stall(ctx context.Context, d *flight.FlightDescriptor, n int) {
	c.t.Helper()
	info, err := c.info(ctx, d)
	if err != nil {
		c.t.Fatal(err)
	}
	var group errgroup.Group
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			_, err := c.open(ctx, info.GetEndpoint()[i%len(info.GetEndpoint())])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		c.t.Fatal(err)
	}
	// Wait until the server's buffers are full, which is when the number of bytes sent does not change any more.
	last, same := -1.0, 0
	deadline.Eventually(c.t, func() error {
		sent := c.metric("datacache_stream_bytes_total")
		if same++; sent != last {
			last, same = sent, 0
		}
		if same < 10 {
			return fmt.Errorf("still sending: %.0f bytes", sent)
		}
		return nil
	})
}

// readBeside has n clients, with a connection each, read shares of the table, and checks every row.
func (c *cluster) readBeside(n, shares int) {
	c.t.Helper()
	ctx := deadline.Context(c.t)
	var group errgroup.Group
	group.SetLimit(n)
	for i := range n {
		group.Go(func() error {
			got, err := c.shard(ctx, i%shares, shares)
			if err != nil {
				return fmt.Errorf("client %d: %w after %d rows", i, err, len(got))
			}
			lo, hi := epoch.Shard(uint64(i%shares), uint64(shares), uint64(c.lake.rows))
			if !slices.Equal(got, between(int64(lo), int64(hi))) {
				return wrongf("client %d: rows %v of share %d of %d", i, got, i%shares, shares)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		c.t.Fatal(err)
	}
}

// memory sums the resident memory of the nodes.
func (c *cluster) memory() int64 {
	var total int64
	for _, n := range c.nodes {
		total += n.memory("VmRSS")
	}
	return total
}

// metric sums a metric over the nodes.
func (c *cluster) metric(name string) float64 {
	var total float64
	for _, n := range c.nodes {
		total += n.metric(name)
	}
	return total
}
