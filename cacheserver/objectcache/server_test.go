// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/objectcache/buckets"
	"github.com/kubeflow/datacache/cacheserver/objectcache/identity"
	"github.com/kubeflow/datacache/cacheserver/objectcache/router"
	"github.com/kubeflow/datacache/cacheserver/objectcache/store"
)

// config is what the tests' servers are told: "open" is public, "team" is a's.
var config = buckets.Config{
	TotalLimit: 1 << 30,
	Buckets: map[string]buckets.Bucket{
		"open": {Name: "open", Public: true, Quota: 1 << 20},
		"team": {Name: "team", Quota: 1 << 20, AllowNamespaces: []string{"a"}},
	},
}

// names is a Reviewer that knows "token-a" as namespace a's, and so on.
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
}

// start runs a server that has every key until its router is told otherwise.
func start(t *testing.T, name string) *member {
	t.Helper()
	quotas := map[string]int64{}
	for bucket, b := range config.Buckets {
		quotas[bucket] = b.Quota
	}
	objects, err := store.Open(store.Config{Dir: t.TempDir(), Limits: store.Limits{Total: config.TotalLimit, Quotas: quotas}})
	if err != nil {
		t.Fatal(err)
	}
	m := &member{store: objects, router: router.New(name), reviewer: &names{}}
	m.Server = New(Config{
		Store: objects, Router: m.router, Reviewer: m.reviewer, Grace: time.Minute, Log: slog.New(slog.DiscardHandler),
		Buckets: func() buckets.Config { return config }, BucketsRejected: func() bool { return false },
	})
	m.Open()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- m.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		objects.Close()
	})
	return m
}

// reply is what of an answer the tests look at.
type reply struct {
	Status int
	Body   string
	Header http.Header
}

// ask sends a request as it is written, so that nothing is cleaned on the way, and reads the answer.
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
	go func() { _, _ = io.WriteString(conn, text+body) }() // a server that refuses early does not read it all
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

func TestRefusals(t *testing.T) {
	t.Parallel()
	m := start(t, "alone")
	if got := ask(t, m.address, "PUT", "/v1/objects/team/there", "secret", asA); got.Status != 201 {
		t.Fatal(got)
	}
	tests := map[string]struct {
		method, target, body string
		headers              []string
		status               int
		says                 string
	}{
		"no such path":             {"GET", "/v1/things/a/b", "", []string{asA}, 404, "/v1/objects/BUCKET/KEY"},
		"the prefix alone":         {"GET", "/v1/objects/", "", []string{asA}, 404, "BUCKET/KEY"},
		"no key":                   {"GET", "/v1/objects/open/", "", []string{asA}, 404, "BUCKET/KEY"},
		"as to a proxy":            {"GET", "http://cache/v1/objects/open/x", "", []string{asA}, 404, "BUCKET/KEY"},
		"a long key":               {"GET", "/v1/objects/open/" + strings.Repeat("k", 4097), "", []string{asA}, 414, "4097"},
		"no token":                 {"GET", "/v1/objects/open/x", "", nil, 401, "Bearer TOKEN"},
		"another scheme":           {"GET", "/v1/objects/open/x", "", []string{"Authorization: Basic token-a"}, 401, "Bearer TOKEN"},
		"nobody's token":           {"PUT", "/v1/objects/open/x", "body", []string{"Authorization: Bearer forged"}, 401, "not valid"},
		"another namespace, there": {"GET", "/v1/objects/team/there", "", []string{"Authorization: Bearer token-b"}, 403, `not open to namespace "b"`},
		"another namespace":        {"GET", "/v1/objects/team/not", "", []string{"Authorization: Bearer token-b"}, 403, `not open to namespace "b"`},
		"no such bucket":           {"GET", "/v1/objects/none/x", "", []string{asA}, 403, `"none" is not open`},
		"another namespace, HEAD":  {"HEAD", "/v1/objects/team/there", "", []string{"Authorization: Bearer token-b"}, 403, ""},
		"another namespace, PUT":   {"PUT", "/v1/objects/team/there", "body", []string{"Authorization: Bearer token-b"}, 403, "not open"},
		"a namespace of no name":   {"GET", "/v1/objects/team/there", "", []string{"Authorization: Bearer token-"}, 403, "not open"},
		"another method":           {"POST", "/v1/objects/open/x", "", []string{asA}, 405, "POST"},
		"too large":                {"PUT", "/v1/objects/open/x", strings.Repeat("b", 1<<20), []string{asA}, 413, "quota"},
		"a part of an object":      {"PUT", "/v1/objects/open/x", "body", []string{asA, "Content-Range: bytes 0-3/8"}, 400, "Content-Range"},
		"a token with space round": {"GET", "/v1/objects/team/there", "", []string{"Authorization: Bearer  token-a\t "}, 200, "secret"},
		"a token of a file":        {"GET", "/v1/objects/team/not", "", []string{asA}, 404, "no such object"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ask(t, m.address, test.method, test.target, test.body, test.headers...)
			if got.Status != test.status || !strings.Contains(got.Body, test.says) {
				t.Errorf("%d %q, want %d with %q", got.Status, got.Body, test.status, test.says)
			}
			if challenge := got.Header.Get("WWW-Authenticate"); (challenge != "") != (test.status == 401) {
				t.Errorf("status %d with WWW-Authenticate %q", got.Status, challenge)
			}
		})
	}
}

func TestNobodyLearnsWhatThereIs(t *testing.T) {
	t.Parallel()
	m := start(t, "alone")
	if got := ask(t, m.address, "PUT", "/v1/objects/team/there", "secret", asA); got.Status != 201 {
		t.Fatal(got)
	}
	before := m.store.Stats()
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE"} {
		there := ask(t, m.address, method, "/v1/objects/team/there", "x", "Authorization: Bearer token-b")
		not := ask(t, m.address, method, "/v1/objects/team/not", "x", "Authorization: Bearer token-b")
		there.Header.Del("Date")
		not.Header.Del("Date")
		if diff := cmp.Diff(there, not); diff != "" {
			t.Errorf("%s of an object that is there and one that is not differ:\n%s", method, diff)
		}
	}
	if diff := cmp.Diff(before, m.store.Stats()); diff != "" {
		t.Errorf("requests that were refused changed the store:\n%s", diff)
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

func TestForwarding(t *testing.T) {
	t.Parallel()
	servers := []*member{start(t, "one"), start(t, "two"), start(t, "three")}
	var members []router.Member
	for i, name := range []string{"one", "two", "three"} {
		members = append(members, router.Member{Name: name, Address: servers[i].address})
	}
	for _, s := range servers {
		s.router.Set(members)
	}
	const objects = 60
	for i := range objects {
		target := fmt.Sprintf("/v1/objects/open//key %%20/../%d", i)
		target = strings.ReplaceAll(target, " ", "")
		if got := ask(t, servers[i%3].address, "PUT", target, fmt.Sprint("body ", i), asA); got.Status != 201 {
			t.Fatalf("PUT: %+v", got)
		}
		for _, s := range servers {
			if got := ask(t, s.address, "GET", target, "", asA, "Range: bytes=1-3"); got.Status != 206 || got.Body != "ody" {
				t.Errorf("GET %s: %d %q, want 206 %q", target, got.Status, got.Body, "ody")
			}
		}
	}
	total := int64(0)
	for _, s := range servers {
		for _, b := range s.store.Stats() {
			if b.Bucket == "open" && b.Objects == 0 {
				t.Error("one server has no object at all")
			}
			total += b.Objects
		}
	}
	if total != objects {
		t.Errorf("%d objects are stored, want each of %d once", total, objects)
	}
	if got := ask(t, servers[0].address, "GET", "/v1/objects/team/x", "", "Authorization: Bearer token-b"); got.Status != 403 {
		t.Errorf("another namespace: %d, want 403", got.Status)
	}
	servers[2].reviewer.down.Store(true)
	for i := range objects { // who forwards lets through what it can judge; who has the key judges again
		target := fmt.Sprintf("/v1/objects/open/fresh-%d", i)
		at, elsewhere := servers[0].router.Elsewhere("open", fmt.Sprintf("fresh-%d", i))
		if !elsewhere || at.Name != "three" {
			continue
		}
		if got := ask(t, servers[0].address, "GET", target, "", "Authorization: Bearer token-c"); got.Status != 503 {
			t.Errorf("the owner can't review, and the answer is %d, want 503", got.Status)
		}
		break
	}
}

func TestNeverForwardedTwice(t *testing.T) {
	t.Parallel()
	one, two := start(t, "one"), start(t, "two")
	// Each thinks that the other has everything.
	one.router.Set([]router.Member{{Name: "two", Address: two.address}})
	two.router.Set([]router.Member{{Name: "one", Address: one.address}})
	if got := ask(t, one.address, "PUT", "/v1/objects/open/x", "body", asA); got.Status != 201 {
		t.Fatal(got)
	}
	for s, want := range map[*member]int64{one: 0, two: 1} {
		var objects int64
		for _, b := range s.store.Stats() {
			objects += b.Objects
		}
		if objects != want {
			t.Errorf("%d objects, want %d", objects, want)
		}
	}
	if got := ask(t, one.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 200 || got.Body != "body" {
		t.Errorf("GET: %+v", got)
	}
}

func TestTheOwnerIsGone(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	dead, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.router.Set([]router.Member{{Name: "two", Address: dead.Addr().String()}})
	dead.Close()
	for method, want := range map[string]int{"GET": 404, "HEAD": 404, "PUT": 503, "DELETE": 503} {
		if got := ask(t, m.address, method, "/v1/objects/open/x", "body", asA); got.Status != want {
			t.Errorf("%s: %d, want %d", method, got.Status, want)
		}
	}
}

func TestNobodyCanReview(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	if got := ask(t, m.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 404 {
		t.Fatal(got)
	}
	m.reviewer.down.Store(true)
	if got := ask(t, m.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 404 {
		t.Errorf("a token that was reviewed before: %d, want 404", got.Status)
	}
	got := ask(t, m.address, "GET", "/v1/objects/open/x", "", "Authorization: Bearer token-new")
	if got.Status != 503 || got.Header.Get("Retry-After") == "" {
		t.Errorf("a new token: %d with Retry-After %q, want 503 and a time", got.Status, got.Header.Get("Retry-After"))
	}
}

func TestNotReady(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	m.Wait("listing the objects of before")
	if got := ask(t, m.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 503 || !strings.Contains(got.Body, "listing") {
		t.Errorf("%+v, want 503 and why", got)
	}
	if ok, reason := m.Ready(); ok || reason != "listing the objects of before" {
		t.Errorf("ready = %v, %q", ok, reason)
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
			io.LimitReader(zeros{}, int64(size))) // of no known length
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

func TestManyOnOneKey(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 250}}
	var group sync.WaitGroup
	for i := range 1000 {
		group.Go(func() {
			method, body := http.MethodGet, io.Reader(nil)
			if i%2 == 0 {
				method, body = http.MethodPut, strings.NewReader(strings.Repeat(string(rune('a'+i%26)), 1000))
			}
			request, err := http.NewRequestWithContext(t.Context(), method, "http://"+m.address+"/v1/objects/open/x", body)
			if err != nil {
				t.Error(err)
				return
			}
			request.Header.Set("Authorization", "Bearer token-a")
			response, err := client.Do(request)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			got, err := io.ReadAll(response.Body)
			if err != nil {
				t.Error(err)
			}
			switch response.StatusCode {
			case 201, 404:
			case 200:
				if len(got) != 1000 || strings.Count(string(got), string(got[:1])) != 1000 {
					t.Errorf("a mixture: %.40q", got)
				}
			default:
				t.Errorf("%s: %d %s", method, response.StatusCode, got)
			}
		})
	}
	group.Wait()
	client.CloseIdleConnections()
}

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
	m.Metrics().ServeHTTP(page, request)
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
