// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Serve is httptest.NewServer at an address, HOST:PORT; port 0 takes a free one. The caller closes the server.
func Serve(t testing.TB, address string, handler http.Handler) *httptest.Server {
	t.Helper()
	var listen net.ListenConfig
	on, err := listen.Listen(context.WithoutCancel(t.Context()), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close() // its own
	server.Listener = on
	server.Start()
	return server
}

// Request sends a request without a body and returns the whole response.
func Request(ctx context.Context, client *http.Client, method, url string) (status int, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}
