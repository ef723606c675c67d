// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package opshttp serves metrics and status to people, probes and Prometheus: a page at /, and /healthz, /ready, /status and /metrics, over
// plain HTTP.
package opshttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/internal/redact"
	"github.com/kubeflow/datacache/internal/watch"
	"github.com/kubeflow/datacache/internal/webpage"
)

// Server is the head, data node or object cache whose status is served.
type Server interface {
	// Ready reports whether clients are served; if not, reason says why.
	Ready() (ok bool, reason string)
	// Status returns the value that /status serves as JSON.
	Status() any
}

// Handler serves the four paths and the page; metrics serves /metrics. With ?nodes=0, /status omits the list of data nodes.
func Handler(server Server, metrics http.Handler, page *watch.Page) http.Handler {
	mux := http.NewServeMux()
	page.Register(mux)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // an error here means that the client left
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		ok, reason := server.Ready()
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, redact.Text(reason)+"\n")
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(redact.Writer(w))
		encoder.SetIndent("", "  ")
		status := server.Status()
		if long, ok := status.(interface{ WithoutNodes() any }); ok && r.URL.Query().Get("nodes") == "0" {
			status = long.WithoutNodes()
		}
		if err := encoder.Encode(status); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.Handle("GET /metrics", metrics)
	return webpage.NoSniff(mux)
}

// WithProfiles adds Go's profiles under /debug/pprof/, without access control.
func WithProfiles(handler http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", handler)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// ServeGracefully serves on the listener until ctx ends; running requests then have grace to finish. It closes the listener. The end of
// ctx is not an error.
func ServeGracefully(ctx context.Context, server *http.Server, listener net.Listener, grace time.Duration) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve http on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		err := server.Shutdown(patient)
		if errors.Is(err, context.DeadlineExceeded) {
			err = server.Close()
		}
		return err
	})
	return group.Wait()
}

// Serve serves on the listener until ctx ends, then closes it. The end of ctx is not an error.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Reachable returns a listener's address as other processes on this machine can use it: if it means "all interfaces", it is replaced
// by loopback.
func Reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
