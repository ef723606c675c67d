// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/router"
)

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

// TestRefusedBeforeAnyLook sends requests to a server that has neither a store nor a router, so that any lookup of an object or of
// its owner would crash. Requests without permission must get a response: so its timing can't depend on which objects exist.
func TestRefusedBeforeAnyLook(t *testing.T) {
	t.Parallel()
	address := serve(t, New(Config{
		Reviewer: &names{}, Log: slog.New(slog.DiscardHandler),
		Buckets: func() buckets.Config { return config }, BucketsRejected: func() bool { return false },
	}))
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "POST"} {
		for token, want := range map[string]int{"token-b": 403, "forged": 401} {
			for _, hop := range []string{"Accept: */*", hopHeader + ": 1"} {
				if got := ask(t, address, method, "/v1/objects/team/x", "body", "Authorization: Bearer "+token, hop); got.Status != want {
					t.Errorf("%s with %s and %q: %d, want %d", method, token, hop, got.Status, want)
				}
			}
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

func TestManyInvalidTokens(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	if got := ask(t, m.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 404 {
		t.Fatal(got)
	}
	last := reply{}
	for i := 0; i < 200 && last.Status != 429; i++ {
		last = ask(t, m.address, "GET", "/v1/objects/open/x", "", fmt.Sprint("Authorization: Bearer invalid-", i))
	}
	if last.Status != 429 || last.Header.Get("Retry-After") == "" {
		t.Errorf("after 200 invalid tokens: %d with Retry-After %q, want 429 and a time", last.Status, last.Header.Get("Retry-After"))
	}
	if got := ask(t, m.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 404 {
		t.Errorf("a token that is known, from the same address: %d, want 404", got.Status)
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

// TestTooLargeIsRefusedAtOnce checks that a body whose announced length is too large is rejected before any of it is sent, on the
// key's owner and on other members.
func TestTooLargeIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for bucket, size := range map[string]int{"small": 2000, "open": 1<<20 + 1, "team": 1 << 40} {
		for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
			for _, elsewhere := range []bool{false, true} {
				m := start(t, "one")
				if elsewhere {
					m.router.Set([]router.Member{{Name: "two", Address: start(t, "two").address}})
				}
				conn := dial(t, m.address)
				fmt.Fprintf(conn, "PUT /v1/objects/%s/x HTTP/1.1\r\nHost: h\r\n%s\r\nContent-Length: %d\r\n%s\r\n", bucket, asA, size, expect)
				got, err := bufio.NewReader(conn).ReadString('\n')
				if err != nil || !strings.HasPrefix(got, "HTTP/1.1 413 ") {
					t.Errorf("%d bytes, expect %q, elsewhere %v: %q, %v", size, expect, elsewhere, got, err)
				}
			}
		}
	}
}
