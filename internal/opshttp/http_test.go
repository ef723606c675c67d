// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package opshttp

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/internal/watch"
)

// listing is a status with a list of nodes.
type listing struct {
	Ready bool  `json:"ready"`
	Nodes []int `json:"nodes"`
}

func (s listing) WithoutNodes() any { return listing{Ready: s.Ready} }

// subject is a Server that is ready or not.
type subject struct{ ready bool }

func (s subject) Ready() (bool, string) { return s.ready, "the reason" }
func (s subject) Status() any           { return listing{s.ready, []int{1}} }

func (subject) Series() []watch.Series { return nil }
func (subject) Sample() watch.Sample   { return watch.Sample{} }
func (subject) View() watch.View       { return watch.View{State: "Looked at"} }

func TestHandler(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "some_metric 1\n") })
	tests := []struct {
		name, method, path string
		ready, profiles    bool
		code               int
		body               string
	}{
		{"alive", "GET", "/healthz", false, false, 200, "ok"},
		{"ready", "GET", "/ready", true, false, 200, "the reason"},
		{"not ready", "GET", "/ready", false, false, 503, "the reason"},
		{"status", "GET", "/status", true, false, 200, `"ready": true`},
		{"status with nodes", "GET", "/status?nodes=1", true, false, 200, `"nodes": [`},
		{"status without nodes", "GET", "/status?nodes=0", true, false, 200, `"nodes": null`},
		{"metrics", "GET", "/metrics", true, false, 200, "some_metric 1"},
		{"page", "GET", "/", true, false, 200, "Looked at"},
		{"page beside profiles", "GET", "/", true, true, 200, "Looked at"},
		{"another path", "GET", "/other", true, false, 404, ""},
		{"another method", "POST", "/status", true, false, 405, ""},
		{"profiles are off", "GET", "/debug/pprof/", true, false, 404, ""},
		{"profiles are on", "GET", "/debug/pprof/", true, true, 200, "goroutine"},
		{"the rest beside profiles", "GET", "/healthz", true, true, 200, "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			handler := Handler(subject{tt.ready}, metrics, watch.New(subject{}))
			if tt.profiles {
				handler = WithProfiles(handler)
			}
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil))
			if answer.Code != tt.code || !strings.Contains(answer.Body.String(), tt.body) {
				t.Errorf("%d %q, want %d with %q", answer.Code, answer.Body, tt.code, tt.body)
			}
		})
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, http.NotFoundHandler()) }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}
