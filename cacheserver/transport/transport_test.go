// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// TestTransports checks that each implementation answers calls, survives a panic, and shuts down gracefully.
func TestTransports(t *testing.T) {
	for _, transport := range []Implementation{H2, GRPC} {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			server, err := NewServer(transport, TLS{}, offheap.NewBudget(1<<30).Clients(), ops.NewMetrics(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			calls := 0
			RegisterFlight(server, &Flight{Status: func() any {
				if calls++; calls > 1 {
					panic("told to")
				}
				return map[string]int{"calls": calls}
			}})
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- Serve(ctx, server, listener, time.Minute) }()

			conn, err := Dial(listener.Addr().String(), TLS{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := flight.NewFlightServiceClient(conn)
			ask := func(action string) (string, error) {
				stream, err := client.DoAction(t.Context(), &flight.Action{Type: action})
				if err != nil {
					return "", err
				}
				result, err := stream.Recv()
				return string(result.GetBody()), err
			}
			if got, err := ask(actionStatus); err != nil || got != `{"calls":1}` {
				t.Errorf("status is %q, error %v", got, err)
			}
			if _, err := ask(actionStatus); status.Code(err) != codes.Internal {
				t.Errorf("a panic became %v", err)
			}
			if _, err := ask("other"); status.Code(err) != codes.Unimplemented {
				t.Errorf("an action that there is not became %v", err)
			}
			stop()
			if err := <-served; err != nil {
				t.Errorf("Serve returned %v", err)
			}
		})
	}
}

func TestParseTransport(t *testing.T) {
	for name, good := range map[string]bool{"h2": true, "grpc": true, "": false, "H2": false} {
		if got, err := ParseImplementation(name); (err == nil) != good || (good && string(got) != name) {
			t.Errorf("%q: %q, error %v", name, got, err)
		}
	}
}

// TestDialResolvesAnew checks that a name that can't be resolved at first is resolved again at every attempt to connect, so that the
// connection works as soon as the name does.
func TestDialResolvesAnew(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	go func() { _ = server.Serve(listener) }() // ends with Stop
	defer server.Stop()
	var asked atomic.Int64
	conn, err := Dial("head.invalid:50051", TLS{}, func(ctx context.Context, address string) (net.Conn, error) {
		if address != "head.invalid:50051" || asked.Add(1) < 4 {
			return nil, &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	deadline.Eventually(t, func() error {
		conn.Connect()
		conn.ResetConnectBackoff()
		if state := conn.GetState(); state != connectivity.Ready {
			return fmt.Errorf("the connection is %s, and the name was asked for %d times", state, asked.Load())
		}
		return nil
	})
}
