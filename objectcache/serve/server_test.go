// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/store"
)

// config is the buckets configuration of the tests' servers: "open" and "small" are public, "team" belongs to namespace a.
var config = buckets.Config{
	TotalLimit: 1 << 30,
	Buckets: map[string]buckets.Bucket{
		"open":  {Name: "open", Public: true, Quota: 1 << 20},
		"small": {Name: "small", Public: true, Quota: 1000},
		"team":  {Name: "team", Quota: 1 << 20, AllowNamespaces: []string{"a"}},
	},
}

// names is a Reviewer that maps "token-a" to namespace a, and so on.
type names struct{ down atomic.Bool }

func (n *names) Review(_ context.Context, token string) (identity.Identity, error) {
	if n.down.Load() {
		return identity.Identity{}, errors.New("connection refused")
	}
	namespace, ok := strings.CutPrefix(token, "token-")
	if !ok {
		return identity.Identity{}, identity.ErrUnknown
	}
	return identity.Identity{Namespace: namespace}, nil
}

// member is one running server.
type member struct {
	*Server
	store    *store.Store
	router   *router.Router
	reviewer *names
	address  string
	dir      string
}

// start runs a server that owns every key until its router gets members.
func start(t *testing.T, name string) *member {
	t.Helper()
	return startWith(t, name, defaultLimits)
}

// startWith is start with other limits.
func startWith(t *testing.T, name string, l limits) *member {
	t.Helper()
	quotas := map[string]int64{}
	for bucket, b := range config.Buckets {
		quotas[bucket] = b.Quota
	}
	dir := t.TempDir()
	objects, err := store.Open(store.Config{Dir: dir, Limits: store.Limits{Total: config.TotalLimit, Quotas: quotas}})
	if err != nil {
		t.Fatal(err)
	}
	m := &member{store: objects, router: router.New(name), reviewer: &names{}, dir: dir}
	m.Server = New(Config{
		Store: objects, Router: m.router, Reviewer: m.reviewer, Grace: time.Minute, Log: slog.New(slog.DiscardHandler),
		Buckets: func() buckets.Config { return config }, BucketsRejected: func() bool { return false },
	})
	m.limits = l
	t.Cleanup(func() { objects.Close() }) // runs after the server has stopped
	m.address = serve(t, m.Server)
	return m
}

// serve serves requests until the end of the test, and returns the server's address.
func serve(t *testing.T, s *Server) (address string) {
	t.Helper()
	s.Open()
	listener := listen(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return listener.Addr().String()
}

// reply is the part of a response that tests look at.
type reply struct {
	Status int
	Body   string
	Header http.Header
}

// ask sends a request verbatim, without the normalization of net/http, and reads the response.
func ask(t *testing.T, address, method, target, body string, headers ...string) reply {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: cache\r\nConnection: close\r\n", method, target)
	if method == "PUT" {
		text += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	text += strings.Join(append(headers, "", ""), "\r\n")
	go func() { _, _ = io.WriteString(conn, text+body) }() // a server that rejects the request early does not read all of it
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: body: %v", method, target, err)
	}
	return reply{response.StatusCode, string(got), response.Header}
}

const asA = "Authorization: Bearer token-a"

func TestObjects(t *testing.T) {
	t.Parallel()
	m := start(t, "alone")
	keys := []string{
		"/v1/objects/open/plain",
		"/v1/objects/open/file:///tmp//d/./x",
		"/v1/objects/open/../team/x",
		"/v1/objects/open/%2e%2e/%2F",
		"/v1/objects/open/a%20b?version=1&c",
		"/v1/objects/open/\xc3\xbcber",
		"/v1/objects/open//",
	}
	for i, target := range keys {
		if got := ask(t, m.address, "GET", target, "", asA); got.Status != 404 {
			t.Errorf("GET %s before PUT: %d", target, got.Status)
		}
		if got := ask(t, m.address, "PUT", target, fmt.Sprint("body ", i), asA); got.Status != 201 {
			t.Errorf("PUT %s: %d %s", target, got.Status, got.Body)
		}
		if got := ask(t, m.address, "PUT", target, fmt.Sprint("new body ", i), asA); got.Status != 201 {
			t.Errorf("PUT %s again: %d %s", target, got.Status, got.Body)
		}
	}
	for i, target := range keys {
		want := fmt.Sprint("new body ", i)
		if got := ask(t, m.address, "GET", target, "", asA); got.Status != 200 || got.Body != want {
			t.Errorf("GET %s: %d %q, want 200 %q", target, got.Status, got.Body, want)
		}
		got := ask(t, m.address, "HEAD", target, "", asA)
		if got.Status != 200 || got.Header.Get("Content-Length") != fmt.Sprint(len(want)) || got.Body != "" {
			t.Errorf("HEAD %s: %d, length %s", target, got.Status, got.Header.Get("Content-Length"))
		}
		if got := ask(t, m.address, "DELETE", target, "", asA); got.Status != 204 {
			t.Errorf("DELETE %s: %d", target, got.Status)
		}
		if got := ask(t, m.address, "GET", target, "", asA); got.Status != 404 {
			t.Errorf("GET %s after DELETE: %d", target, got.Status)
		}
	}
}

func TestRanges(t *testing.T) {
	t.Parallel()
	m := start(t, "alone")
	if got := ask(t, m.address, "PUT", "/v1/objects/open/x", "0123456789", asA); got.Status != 201 {
		t.Fatal(got)
	}
	if got := ask(t, m.address, "PUT", "/v1/objects/open/empty", "", asA); got.Status != 201 {
		t.Fatal(got)
	}
	tests := []struct {
		target, header string
		status         int
		body, content  string
	}{
		{"x", "bytes=0-3", 206, "0123", "bytes 0-3/10"},
		{"x", "bytes=4-", 206, "456789", "bytes 4-9/10"},
		{"x", "bytes=-3", 206, "789", "bytes 7-9/10"},
		{"x", "bytes=-30", 206, "0123456789", "bytes 0-9/10"},
		{"x", "bytes=8-99", 206, "89", "bytes 8-9/10"},
		{"x", "bytes=9-9", 206, "9", "bytes 9-9/10"},
		{"x", "bytes=10-", 416, "", "bytes */10"},
		{"x", "bytes=-0", 416, "", "bytes */10"},
		{"x", "bytes=99999999999999999999-", 200, "0123456789", ""},
		{"x", "bytes=5-3", 200, "0123456789", ""},
		{"x", "bytes=0-1,3-4", 200, "0123456789", ""},
		{"x", "bytes=a-b", 200, "0123456789", ""},
		{"x", "bytes=--3", 200, "0123456789", ""},
		{"x", "lines=0-1", 200, "0123456789", ""},
		{"empty", "bytes=0-", 416, "", "bytes */0"},
		{"empty", "bytes=-1", 416, "", "bytes */0"},
	}
	for _, test := range tests {
		got := ask(t, m.address, "GET", "/v1/objects/open/"+test.target, "", asA, "Range: "+test.header)
		if got.Status != test.status || got.Header.Get("Content-Range") != test.content || test.status != 416 && got.Body != test.body {
			t.Errorf("%s of %s: %d %q %q, want %d %q %q", test.header, test.target,
				got.Status, got.Body, got.Header.Get("Content-Range"), test.status, test.body, test.content)
		}
	}
	if got := ask(t, m.address, "GET", "/v1/objects/open/x", "", asA, "Range: bytes=0-3", `If-Range: "tag"`); got.Status != 200 {
		t.Errorf("with If-Range: %d, want 200: objects have no tags", got.Status)
	}
}

func TestABodyThatBreaksOffIsNoObject(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	for _, framing := range []string{"Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", m.address)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "PUT /v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n%s\r\n%s", asA, framing)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.StatusCode != 400 {
			t.Errorf("%q: %v %v, want 400", framing, response, err)
		}
		conn.Close()
		if got := ask(t, m.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 404 {
			t.Errorf("%q: the half is served with %d", framing, got.Status)
		}
	}
}

func TestChunkedBodies(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	for size, want := range map[int]int{0: 201, 1000: 201, 900 << 10: 201, 1 << 20: 413} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+m.address+"/v1/objects/open/x",
			io.LimitReader(zeros{}, int64(size))) // so that its length is unknown to the client
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer token-a")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%d bytes: %d, want %d", size, response.StatusCode, want)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestMetricsCount(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	ask(t, m.address, "PUT", "/v1/objects/open/x", "12345", asA)
	ask(t, m.address, "GET", "/v1/objects/open/x", "", asA)
	ask(t, m.address, "GET", "/v1/objects/open/y", "", asA)
	ask(t, m.address, "GET", "/v1/objects/open/y", "")
	ask(t, m.address, "BREW", "/v1/objects/open/y", "", asA)
	page := httptest.NewRecorder()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	m.metrics.handler().ServeHTTP(page, request)
	for _, want := range []string{
		`requests_total{code="201",method="PUT"} 1`,
		`requests_total{code="200",method="GET"} 1`,
		`requests_total{code="404",method="GET"} 1`,
		`requests_total{code="401",method="GET"} 1`,
		`requests_total{code="405",method="other"} 1`,
		`hits_total{bucket="open"} 1`,
		`misses_total{bucket="open"} 1`,
		`sent_bytes_total{bucket="open"} 5`,
		`received_bytes_total{bucket="open"} 5`,
		`bucket_objects{bucket="open"} 1`,
		`evictions_total{bucket="open"} 0`,
		`review_seconds_count{outcome="known"} 1`,
		`disk_failures_total 0`,
		`buckets_file_rejected 0`,
	} {
		if !strings.Contains(page.Body.String(), "datacache_objectcache_"+want+"\n") {
			t.Errorf("no line datacache_objectcache_%s", want)
		}
	}
	if t.Failed() {
		t.Log(page.Body.String())
	}
}
