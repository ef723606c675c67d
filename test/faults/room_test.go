// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// processors are the values of GOMAXPROCS that a test of memory runs with: 16, or those of DATACACHE_PROCESSORS, separated by commas.
func processors(t *testing.T) []int {
	t.Helper()
	text := os.Getenv("DATACACHE_PROCESSORS")
	if text == "" {
		return []int{16}
	}
	var all []int
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 1 {
			t.Fatalf("DATACACHE_PROCESSORS: %q, want numbers of processors separated by commas, such as 2,16,64", text)
		}
		all = append(all, n)
	}
	return all
}

// TestLoadWaitsForRoom loads a table of 24 row groups of 8 MiB into nodes that have room for its rows and for one or a few row groups in
// progress, on as many processors as would decode all at once.
func TestLoadWaitsForRoom(t *testing.T) {
	l, size := &lake{t: t, dir: t.TempDir(), width: 4 << 10}, many(t, 1)
	l.fill(icetest.In(t, l.dir), 6, size*8192, size*2048, icetest.Property("write.parquet.compression-codec", "uncompressed"))
	for _, n := range processors(t) {
		for _, limit := range []int{14 + 220*size, 280 * size} {
			t.Run(fmt.Sprintf("%d processors, %d MiB", n, limit), func(t *testing.T) { l.loadsWithin(t, n, int64(limit)<<20) })
		}
	}
}

// TestLoadGivesWay is TestLoadWaitsForRoom for row groups whose size can't be known before they are decoded: their texts are one word of a
// dictionary.
func TestLoadGivesWay(t *testing.T) {
	l := &lake{t: t, dir: t.TempDir(), width: 4 << 10, alike: true}
	l.fill(icetest.In(t, l.dir), 6, 8192, 2048)
	for _, n := range processors(t) {
		t.Run(fmt.Sprintf("%d processors", n), func(t *testing.T) { l.loadsWithin(t, n, 234<<20) })
	}
}

// loadsWithin loads the table into a data node with processors and a memory limit, and checks its memory and its rows.
func (l *lake) loadsWithin(t *testing.T, processors int, limit int64) {
	t.Helper()
	own := *l
	own.t = t
	c := newCluster(t, &own, 1)
	c.variables = []string{fmt.Sprintf("GOMAXPROCS=%d", processors)}
	c.nodeArgs = []string{"--memory-limit", strconv.FormatInt(limit, 10)}
	c.startAll()
	c.loads()
	peak := c.nodes[0].memory("VmHWM")
	t.Logf("the node took at most %d MiB, and reserved %.0f", peak>>20, c.nodes[0].metric("datacache_memory_peak_bytes")/(1<<20))
	if peak > limit+slack() {
		t.Errorf("the node took %d MiB, its limit is %d", peak>>20, limit>>20)
	}
	c.servesAll(1)
}

// loads waits until the cache is Ready, and fails the test as soon as it is Failed.
func (c *cluster) loads() {
	c.t.Helper()
	deadline.Eventually(c.t, func() error {
		s, err := statusOf[protocol.Status](c.head)
		if err == nil && s.State == protocol.StateFailed {
			c.t.Fatalf("the cache failed: %s", s.Reason)
		}
		if err == nil && s.State != protocol.StateReady {
			err = fmt.Errorf("the head is %s: %s", s.State, s.Reason)
		}
		return err
	})
}
