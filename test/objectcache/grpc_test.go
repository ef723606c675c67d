// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// peerHeader is the metadata key in which a gRPC server of the test says who it is.
const peerHeader = "peer"

// serveGRPC runs a gRPC server that answers all calls with its name, and returns its address.
func serveGRPC(t *testing.T, name string) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.SetHeader(metadata.Pairs(peerHeader, name)); err != nil {
			return err
		}
		if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
			return err
		}
		return stream.SendMsg(&emptypb.Empty{})
	}))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// TestGRPCClients configures the xDS clients of grpc-go and grpcio by an object cache. Its members are gRPC servers, since object
// caches speak no gRPC. Both must accept the configuration, and send calls with the same key to the same member.
func TestGRPCClients(t *testing.T) {
	t.Parallel()
	python := os.Getenv("DATACACHE_CLIENTS_PYTHON")
	if python == "" {
		t.Skip("DATACACHE_CLIENTS_PYTHON names no Python that has grpcio: run by make, which makes one of hack/python/clients.txt")
	}
	dir, control := t.TempDir(), proctest.FreeAddress(t)
	var peers strings.Builder
	for name, zone := range zones {
		fmt.Fprintln(&peers, name, serveGRPC(t, name), zone)
	}
	p := start(t, options{args: []string{"--name", "a", "--peers", write(t, filepath.Join(dir, "peers"), peers.String()), "--xds", control}})
	bootstrap := fmt.Sprintf(`{"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
		"node": {"id": "test"}}`, control)
	keys := awkward(t, 600)

	inGo := placeInGo(t, bootstrap, keys)
	inPython := placeInPython(t, python, write(t, filepath.Join(dir, "bootstrap.json"), bootstrap), keys)
	shares := map[string]int{}
	for i, key := range keys {
		if inGo[i] != inPython[i] {
			t.Errorf("%s: grpc-go's call went to %s, grpcio's to %s", key, inGo[i], inPython[i])
		}
		shares[inGo[i]]++
	}
	for name := range zones { // a ring is less even than Maglev's table
		if n := shares[name]; n < 120 || n > 280 {
			t.Errorf("%s has %d of %d keys, want about a third: %v", name, n, len(keys), shares)
		}
	}
	t.Logf("keys of %v: %v", slices.Sorted(maps.Keys(zones)), shares)
	if n, found := p.metricSum("datacache_xds_rejected_total"); n != 0 || !found {
		t.Errorf("%g updates were rejected (there is a metric: %v), want none", n, found)
	}
}

// placeInGo calls with each key, twice, and returns the names of the servers.
func placeInGo(t *testing.T, bootstrap string, keys []string) []string {
	t.Helper()
	resolver, err := xds.NewXDSResolverWithConfigForTesting([]byte(bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn, err := grpc.NewClient("xds:///datacache-object-cache", grpc.WithResolvers(resolver), plain)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var names []string
	for _, key := range append(slices.Clone(keys), keys...) {
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(t.Context(), "datacache-object", "open/"+key)
		if err := conn.Invoke(ctx, "/any/Call", &emptypb.Empty{}, &emptypb.Empty{}, grpc.Header(&header), grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Get(peerHeader)[0])
	}
	first, again := names[:len(keys)], names[len(keys):]
	if !slices.Equal(first, again) {
		t.Error("grpc-go's calls with the same keys went to other servers the second time")
	}
	return first
}

// placeInPython calls with each key and returns the names of the servers.
func placeInPython(t *testing.T, python, bootstrap string, keys []string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, "grpc_client.py", "xds:///datacache-object-cache")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "GRPC_XDS_BOOTSTRAP=" + bootstrap,
		"GRPC_XDS_ENDPOINT_HASH_KEY_BACKWARD_COMPAT=false", // members are hashed by name, not by address (gRFC A76)
	}
	cmd.Stdin = strings.NewReader("open/" + strings.Join(keys, "\nopen/") + "\n")
	says := &output{}
	cmd.Stderr = io.Writer(says)
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("grpcio: %v: %s", err, says)
	}
	names := strings.Fields(string(text))
	if len(names) != len(keys) {
		t.Fatalf("grpcio made %d calls for %d keys: %s", len(names), len(keys), says)
	}
	return names
}
