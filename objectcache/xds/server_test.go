// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	adsstream "github.com/envoyproxy/go-control-plane/pkg/server/stream/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	status "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

var node = &core.Node{Id: "test", UserAgentName: "envoy"}

// TestMembersAreGathered runs on a fake clock.
func TestMembersAreGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := New(Config{Listener: on, Log: slog.New(slog.DiscardHandler)})
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.publish(ctx)
		}()
		version := func() string {
			synctest.Wait()
			snapshot, err := s.cache.GetSnapshot(string(envoys))
			if err != nil {
				return "none"
			}
			return snapshot.GetVersion(resource.EndpointType)
		}
		answers := make(chan cache.DeltaResponse, 1)
		request := &discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{objects}}
		if _, err := s.cache.CreateDeltaWatch(request, adsstream.NewDeltaSubscription([]string{objects}, nil, nil, false), answers); err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Hour) //nolint:forbidigo // the clock of synctest
		if got := version(); got != "none" || len(answers) > 0 {
			t.Errorf("version %s and %d answers before the members are known, want none", got, len(answers))
		}
		for _, members := range [][]router.Member{trio[:1], trio[:2], trio} { // 75 ms apart
			s.SetMembers(members)
			time.Sleep(75 * time.Millisecond) //nolint:forbidigo // the clock of synctest
		}
		// The first change was made 225 ms ago, and all are published.
		want := versions(t, trio)[string(envoys)+" "+resource.EndpointType]
		if got := version(); got != want {
			t.Errorf("version %s, want %s: the members that were set last", got, want)
		}
		if len(answers) != 1 {
			t.Errorf("%d answers, want one", len(answers))
		}
		s.SetMembers(nil)
		time.Sleep(gather - time.Millisecond) //nolint:forbidigo // the clock of synctest
		if got := version(); got != want {
			t.Errorf("version %s after less than %s, want still %s", got, gather, want)
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // the clock of synctest
		if got, want := version(), versions(t, nil)[string(envoys)+" "+resource.EndpointType]; got != want {
			t.Errorf("version %s, want %s: no members", got, want)
		}
		cancel()
		<-done
	})
}

// running is a Server on loopback, and its log.
type running struct {
	*Server
	log  *log
	stub discovery.AggregatedDiscoveryServiceClient
}

// log is a buffer for one logger.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serve runs a Server until the end of the test.
func serve(t *testing.T) *running {
	t.Helper()
	r := &running{log: &log{}}
	r.Server = New(Config{Listener: on, Log: slog.New(slog.NewTextHandler(r.log, nil))})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		conn.Close()
	})
	r.stub = discovery.NewAggregatedDiscoveryServiceClient(conn)
	return r
}

// endpointsIn returns the number of endpoints of a response's only assignment, and the response's version.
func endpointsIn(t *testing.T, r *discovery.DiscoveryResponse) (n int, version string) {
	t.Helper()
	if len(r.GetResources()) != 1 {
		t.Fatalf("%d resources of %s, want one", len(r.GetResources()), r.GetTypeUrl())
	}
	var a endpoint.ClusterLoadAssignment
	if err := r.GetResources()[0].UnmarshalTo(&a); err != nil {
		t.Fatal(err)
	}
	for _, zone := range a.GetEndpoints() {
		n += len(zone.GetLbEndpoints())
	}
	return n, r.GetVersionInfo()
}

// TestRejectedIsNotSentAgain rejects two updates over state-of-the-world xDS, like a client of another version could.
func TestRejectedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	s := serve(t)
	stream, err := s.stub.StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	request := &discovery.DiscoveryRequest{Node: node, TypeUrl: resource.EndpointType, ResourceNames: []string{objects}}
	for n := range 3 {
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			// A client that sent a NACK must be known to have, before the members change.
			deadline.Until(t, "the rejection to be counted", func() bool { return testutil.ToFloat64(s.clients.rejected.WithLabelValues("endpoints")) == float64(n) })
		}
		s.SetMembers(trio[:n])
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got, version := endpointsIn(t, response); got != n {
			t.Fatalf("update %d has %d endpoints and version %s, want %d endpoints", n, got, version, n)
		}
		request = &discovery.DiscoveryRequest{
			TypeUrl: resource.EndpointType, ResourceNames: []string{objects}, ResponseNonce: response.GetNonce(),
			ErrorDetail: &status.Status{Code: int32(codes.InvalidArgument), Message: "not to my liking"},
		}
	}
	if text := s.log.String(); strings.Count(text, "not to my liking") != 2 || !strings.Contains(text, "node=test type=endpoints") {
		t.Errorf("the log is %q, want two errors with the client's node, the type and its message", text)
	}
	if n := testutil.ToFloat64(s.clients.streams); n != 1 {
		t.Errorf("%g streams, want 1", n)
	}
}

// TestReconnectResendsNothing moves a client of delta xDS from one Server to another.
func TestReconnectResendsNothing(t *testing.T) {
	t.Parallel()
	first, second := serve(t), serve(t)
	first.SetMembers(trio)
	second.SetMembers([]router.Member{trio[2], trio[0], trio[1]})

	known := map[string]string{}
	stream, err := first.stub.DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := &discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{objects}}
	if err := stream.Send(ask); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range response.GetResources() {
		known[r.GetName()] = r.GetVersion()
	}
	if len(known) != 1 {
		t.Fatalf("%d resources, want one", len(known))
	}

	stream, err = second.stub.DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask.InitialResourceVersions = known
	if err := stream.Send(ask); err != nil {
		t.Fatal(err)
	}
	// Requests are answered in order: a response to the one before would come first.
	listeners := &discovery.DeltaDiscoveryRequest{TypeUrl: resource.ListenerType, ResourceNamesSubscribe: []string{"*"}}
	if err := stream.Send(listeners); err != nil {
		t.Fatal(err)
	}
	if response, err = stream.Recv(); err != nil || response.GetTypeUrl() != resource.ListenerType {
		t.Fatalf("%v, %v, want nothing but the Listener, since the endpoints are known", response, err)
	}
	second.SetMembers(nil)
	response, err = stream.Recv()
	if err != nil || response.GetTypeUrl() != resource.EndpointType || response.GetResources()[0].GetVersion() == known[objects] {
		t.Fatalf("%v, %v, want the new endpoints", response, err)
	}
}
