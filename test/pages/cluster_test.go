// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
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
	h, err := head.New(head.Config{
		Flight: flight, HTTP: web, Nodes: nodes, Store: store, Source: c.source, Grace: time.Millisecond,
		Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(),
	})
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
	n, err := node.New(node.Config{
		Index: index, Head: c.flight, Advertise: flight.Addr().String(), Flight: flight, HTTP: web, Budget: rows.NewBudget(256 << 20),
		Store: c.store, Source: c.source, Grace: time.Millisecond, Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return "http://" + web.Addr().String(), run(c.t, n.Start)
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
	r := reader{head: c.flight, clients: map[string]flight.Client{}}
	c.t.Cleanup(r.close)
	if err := r.epoch(c.t.Context(), rank, idle); err != nil {
		c.t.Fatal(err)
	}
}

// reader is a client of a cache.
type reader struct {
	head    string
	clients map[string]flight.Client // by address
}

func (r *reader) close() {
	for _, c := range r.clients {
		_ = c.Close()
	}
}

func (r *reader) client(address string) (flight.Client, error) {
	if c := r.clients[address]; c != nil {
		return c, nil
	}
	c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		r.clients[address] = c
	}
	return c, err
}

func (r *reader) epoch(ctx context.Context, rank int, idle bool) error {
	head, err := r.client(r.head)
	if err != nil {
		return err
	}
	command := fmt.Sprintf(`{"v":1,"kind":"epoch","seed":1,"epoch":0,"shuffle":false,"global_batch":64,"tail":"pad","rank":%d,"world":2,"job":"trial-7"}`, rank)
	info, err := head.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
	if err != nil {
		return err
	}
	for _, endpoint := range info.Endpoint {
		node, err := r.client(strings.TrimPrefix(endpoint.Location[0].Uri, "grpc://"))
		if err != nil {
			return err
		}
		stream, err := node.DoGet(ctx, endpoint.Ticket)
		for err == nil {
			if _, err = stream.Recv(); idle {
				break
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}
