// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/internal/authority"
)

// writeCA writes a new CA to a file.
func writeCA(t *testing.T, path string) {
	t.Helper()
	certificate, key, err := authority.New("reviews", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, authority.Join(certificate, key), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	got := TLS{Names: []string{"reviews"}}.Named("10.1.2.3:50051", "[::]:50051", "node-0.reviews:50051").Names
	if want := []string{"reviews", "10.1.2.3", "node-0.reviews"}; !slices.Equal(got, want) {
		t.Errorf("the names are %v, want %v", got, want)
	}
}

// TestAuthority checks for each implementation that a server with a CA takes TLS 1.3 by that CA and plain text, that it follows a new CA for
// new connections, and that an open connection goes on.
func TestAuthority(t *testing.T) {
	t.Parallel()
	for _, transport := range []Implementation{H2, GRPC} {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "ca.pem")
			writeCA(t, path)
			secured := TLS{Authority: path, Plain: true}
			server, err := NewServer(transport, secured, offheap.NewBudget(1<<30).Clients(), ops.NewMetrics(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			RegisterFlight(server, &schemes{})
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = server.Serve(listener) }()
			defer server.Stop()
			scheme := func(conn *grpc.ClientConn) string {
				schema, err := flight.NewFlightServiceClient(conn).GetSchema(t.Context(), &flight.FlightDescriptor{})
				if err != nil {
					return err.Error()
				}
				return string(schema.GetSchema())
			}
			dial := func(of TLS) *grpc.ClientConn {
				conn, err := Dial(listener.Addr().String(), of, nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				return conn
			}
			open := dial(secured)
			if got := scheme(open); got != "grpc+tls" {
				t.Errorf("by TLS: %s", got)
			}
			if got := scheme(dial(TLS{})); got != "grpc" {
				t.Errorf("in plain text: %s", got)
			}
			old, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}))) //nolint:gosec // to be refused
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = old.Close() }()
			if got := scheme(old); !strings.Contains(got, "protocol version") {
				t.Errorf("by TLS 1.2: %s", got)
			}
			stale := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.Rename(path, stale); err != nil {
				t.Fatal(err)
			}
			writeCA(t, path)
			time.Sleep(lookEvery + 100*time.Millisecond) //nolint:forbidigo // files are not read again before
			if got := scheme(dial(secured)); got != "grpc+tls" {
				t.Errorf("by the new CA: %s", got)
			}
			if got := scheme(dial(TLS{Authority: stale})); !strings.Contains(got, "unknown authority") {
				t.Errorf("by the old CA: %s", got)
			}
			if got := scheme(open); got != "grpc+tls" {
				t.Errorf("on the open connection: %s", got)
			}
		})
	}
}

// schemes is a service that answers with the scheme of the caller's connection.
type schemes struct{ flight.BaseFlightServer }

func (*schemes) GetSchema(ctx context.Context, _ *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	return &flight.SchemaResult{Schema: []byte(Scheme(ctx))}, nil
}
