// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/transport/h2"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// TestSilentConnections checks for each implementation that a call succeeds while many more connections than there is memory for are silent or in
// the middle of a TLS handshake, before their time has passed, and that all memory is released in the end.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	for _, transport := range []Implementation{H2, GRPC} {
		for name, first := range map[string]string{"silent": "", "TLS": "\x16\x03\x01\x02\x00\x01"} {
			t.Run(string(transport)+"/"+name, func(t *testing.T) {
				t.Parallel()
				secured := TLS{Authority: filepath.Join(t.TempDir(), "ca.pem"), Plain: true}
				writeCA(t, secured.Authority)
				budget := offheap.NewBudget(16 << 20)
				server, err := NewServer(transport, secured, budget.Clients(), ops.NewMetrics(), slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				RegisterFlight(server, &Flight{Status: func() any { return "there" }})
				listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				served := make(chan error, 1)
				go func() { served <- Serve(ctx, server, listener, time.Millisecond) }()
				inTime, cancel := context.WithTimeout(t.Context(), h2.HandshakeTime)
				defer cancel()
				silent := make([]net.Conn, 600)
				for i := range silent {
					if silent[i], err = (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String()); err != nil {
						t.Fatal(err)
					}
					if _, err := io.WriteString(silent[i], first); err != nil {
						t.Fatal(err)
					}
				}
				for _, tls := range []TLS{secured, {}} {
					conn, err := Dial(listener.Addr().String(), tls, nil)
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					stream, err := flight.NewFlightServiceClient(conn).DoAction(inTime, &flight.Action{Type: actionStatus}, grpc.WaitForReady(true))
					if err != nil {
						t.Fatal(err)
					}
					if result, err := stream.Recv(); err != nil || string(result.GetBody()) != `"there"` {
						t.Errorf("%q, %v", result.GetBody(), err)
					}
				}
				for _, c := range silent {
					_ = c.Close()
				}
				stop()
				if err := <-served; err != nil {
					t.Errorf("Serve returned %v", err)
				}
				deadline.Eventually(t, func() error {
					if used := budget.Used(); used > 0 {
						return errors.New("memory is still reserved")
					}
					return nil
				})
			})
		}
	}
}
