// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package icetest

import (
	"encoding/json"
	"net"
	"net/http"
	"testing"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// Loaded is how an Iceberg REST catalog answers a client that loads a table (LoadTableResult of its specification).
type Loaded struct {
	Location string            `json:"metadata-location"`
	Metadata json.RawMessage   `json:"metadata"`
	Config   map[string]string `json:"config"`
}

// ServeCatalog serves, at an IP address, the two requests of an Iceberg REST catalog with which a head finds the table demo.reviews: the
// configuration, and the table, which load returns each time. It returns the catalog's URI.
func ServeCatalog(t testing.TB, ip string, load func() Loaded) string {
	t.Helper()
	answer := func(w http.ResponseWriter, value any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(value); err != nil {
			t.Error(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/config", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"defaults": map[string]string{}, "overrides": map[string]string{}})
	})
	mux.HandleFunc("GET /v1/namespaces/demo/tables/reviews", func(w http.ResponseWriter, _ *http.Request) { answer(w, load()) })
	server := proctest.Serve(t, net.JoinHostPort(ip, "0"), mux)
	t.Cleanup(server.Close)
	return server.URL
}
