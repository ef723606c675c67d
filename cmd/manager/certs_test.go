// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestSelector checks that lists and watches are restricted to one name, and that other requests are unchanged.
func TestSelector(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ method, url, want string }{
		"list":    {http.MethodGet, "/api/v1/namespaces/platform/secrets?limit=500", "/api/v1/namespaces/platform/secrets?fieldSelector=metadata.name%3Ddatacache-webhook-cert&limit=500"},
		"watch":   {http.MethodGet, "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations?watch=true", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations?fieldSelector=metadata.name%3Ddatacache.kubeflow.org&watch=true"},
		"get":     {http.MethodGet, "/api/v1/namespaces/platform/secrets/datacache-webhook-cert", "/api/v1/namespaces/platform/secrets/datacache-webhook-cert"},
		"create":  {http.MethodPost, "/api/v1/namespaces/platform/secrets", "/api/v1/namespaces/platform/secrets"},
		"another": {http.MethodGet, "/api/v1/pods", "/api/v1/pods"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RequestURI }))
			defer server.Close()
			request, err := http.NewRequestWithContext(t.Context(), tt.method, server.URL+tt.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := selector{http.DefaultTransport, cachesParts}.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			if err := response.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("%s %s is sent as %s, want %s", tt.method, tt.url, got, tt.want)
			}
		})
	}
}
