// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
)

// TestPasses parses passes of this process, of another one, and forged ones: an owner must not be believed without its MAC.
func TestPasses(t *testing.T) {
	t.Parallel()
	here, other := newTokens(), newTokens()
	mine, victim := ownerOf("me", "secret"), ownerOf("victim", "secret")
	for name, test := range map[string]struct {
		header  string
		trusted bool
		want    credentials
	}{
		"none":                       {"", false, credentials{}},
		"Basic":                      {"Basic abc", false, credentials{owner: "Basic abc", forward: "Basic abc"}},
		"a token":                    {"Bearer abc", false, credentials{owner: "Bearer abc", forward: "Bearer abc"}},
		"a pass":                     {"Bearer " + here.pass(mine, "a-b.c"), false, credentials{owner: "owner " + mine, forward: "Bearer a-b.c"}},
		"a pass without a token":     {"Bearer " + here.pass(mine, ""), false, credentials{owner: "owner " + mine, noToken: true}},
		"another process's":          {"Bearer " + other.pass(mine, "a-b.c"), false, credentials{owner: "Bearer a-b.c", forward: "Bearer a-b.c"}},
		"another's without a token":  {"Bearer " + other.pass(mine, ""), false, credentials{}},
		"from another object cache":  {"Bearer " + other.pass(mine, "a-b.c"), true, credentials{owner: "owner " + mine, forward: "Bearer a-b.c"}},
		"with another owner":         {"Bearer " + strings.Replace(here.pass(mine, "a"), mine, victim, 1), false, credentials{owner: "Bearer a", forward: "Bearer a"}},
		"with another token":         {"Bearer " + here.pass(mine, "a") + "b", false, credentials{owner: "Bearer ab", forward: "Bearer ab"}},
		"a token that begins so":     {"Bearer mirror-abc", false, credentials{owner: "Bearer mirror-abc", forward: "Bearer mirror-abc"}},
		"another owner, no token":    {"Bearer " + strings.Replace(here.pass(mine, ""), mine, victim, 1), false, credentials{}},
		"a forged pass, not trusted": {"Bearer mirror-0-" + victim + "-x", false, credentials{owner: "Bearer x", forward: "Bearer x"}},
	} {
		test.want.header = test.header
		if got := here.parse(test.header, test.trusted); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestChallenges(t *testing.T) {
	t.Parallel()
	tokens := newTokens()
	if got := tokens.challenge("r", "host", "s"); got != "" {
		t.Errorf("a challenge of a registry that sent none: %s", got)
	}
	for _, text := range []string{"", "Basic realm=\"x\"", "Bearer realm=\"file:///etc/passwd\"", "Bearer"} {
		if _, ok := tokens.note("r", []string{text}); ok {
			t.Errorf("%q names a realm", text)
		}
	}
	scope, ok := tokens.note("r", []string{`Basic realm="x"`, `Bearer realm="https://auth.example.com/token?a=b",service="registry",scope="repository:a/b:pull,push"`})
	if !ok || scope != "repository:a/b:pull,push" {
		t.Errorf("scope %q, %v", scope, ok)
	}
	want := `Bearer realm="http://127.0.0.1:8001/v2/token?ns=r%3A5000",service="registry",scope="repository:a:pull"`
	tokens.note("r:5000", []string{`Bearer realm="https://auth.example.com/token",service="registry"`})
	if got := tokens.challenge("r:5000", "http://127.0.0.1:8001", "repository:a:pull"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestRealmInPlainText has a registry with TLS name a token server without: it must not get the user's password.
func TestRealmInPlainText(t *testing.T) {
	t.Parallel()
	realm := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		t.Errorf("the token server got %s of %s", password, user)
	}))
	t.Cleanup(realm.Close)
	g := New(Options{
		Config:   func() Config { return Config{Registries: map[string]string{"r": "https://r.example"}} },
		Upstream: upstream.New(), FromPeer: func(*http.Request) bool { return false }, Log: slog.New(slog.DiscardHandler),
	})
	g.tokens.note("r", []string{`Bearer realm="` + realm.URL + `/token",service="s"`})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		r := httptest.NewRequestWithContext(t.Context(), method, tokenPath+"?ns=r", strings.NewReader("username=u&password=secret"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.SetBasicAuth("u", "secret")
		answer := httptest.NewRecorder()
		g.Serve(answer, r, false)
		text, _ := io.ReadAll(answer.Result().Body)
		if want := "the registry at https://r.example names a token server in plain text at "; answer.Code != http.StatusBadGateway || !strings.Contains(string(text), want) {
			t.Errorf("%s: %d %s, want %d %s", method, answer.Code, text, http.StatusBadGateway, want)
		}
	}
}
