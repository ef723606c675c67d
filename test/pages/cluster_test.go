// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/test/kit/readtest"
)

// cluster is a head and data nodes, each with a page of its own.
type cluster struct {
	t      testing.TB
	source source.Source
	store  *objstore.Store
	flight string // address of the head
	head   string // URL of its page
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// startHead starts a head that waits for data nodes.
func startHead(t *testing.T, metadata string, selection iceberg.Selection, nodes int) *cluster {
	t.Helper()
	store := objstore.New(objstore.Config{})
	c := &cluster{t: t, store: store, source: &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: metadata}, Selection: selection}}
	flight, web := listen(t), listen(t)
	c.flight, c.head = flight.Addr().String(), "http://"+web.Addr().String()
	h, err := head.New(head.Config{Nodes: nodes, Config: role.Config{
		Flight: flight, HTTP: web, Budget: offheap.NewBudget(256 << 20), Store: store, Source: c.source, Grace: time.Millisecond,
		Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, h.Start)
	return c
}

// startNode starts a data node and returns the URL of its page, and a function that stops it.
func (c *cluster) startNode(index int) (url string, stop func()) {
	c.t.Helper()
	flight, web := listen(c.t), listen(c.t)
	n, err := node.New(node.Config{Index: index, Head: c.flight, Advertise: flight.Addr().String(), Config: role.Config{
		Flight: flight, HTTP: web, Budget: offheap.NewBudget(256 << 20),
		Store: c.store, Source: c.source, Grace: time.Millisecond, Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(),
	}})
	if err != nil {
		c.t.Fatal(err)
	}
	return "http://" + web.Addr().String(), run(c.t, n.Start)
}

// build builds cacheserver.
func build(t testing.TB) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "cacheserver")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/cacheserver").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// spawnNode starts a data node of 256 MiB as a process of its own.
func (c *cluster) spawnNode(index int, metadata string) *proctest.Process {
	c.t.Helper()
	return proctest.Start(c.t, fmt.Sprint("data node ", index), os.Environ(), build(c.t), "node", "--head", c.flight, "--index", fmt.Sprint(index),
		"--metadata", metadata, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--memory-limit", "256Mi")
}

// run runs start until stop is called or the test ends.
func run(t testing.TB, start func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- start(ctx) }()
	done := false
	stop = func() {
		if done {
			return
		}
		done = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// read reads what a rank of two gets in an epoch, from every data node. If idle is set, it reads only the first message of each stream
// and leaves the streams open until the test ends.
func (c *cluster) read(rank int, idle bool) {
	c.t.Helper()
	r := readtest.New(c.flight)
	c.t.Cleanup(r.Close)
	if err := r.Epoch(c.t.Context(), 0, rank, idle); err != nil {
		c.t.Fatal(err)
	}
}
