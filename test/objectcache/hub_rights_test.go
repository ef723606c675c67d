// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/hubtest"
)

// reply is an answer of a mirror. err is that of its body.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// ask sends a request for a path below the hub's prefix to a node.
func (m *mirrors) ask(node int, method, token, path string) reply {
	m.t.Helper()
	r, err := http.NewRequestWithContext(m.t.Context(), method, m.nodes[node].mirror()+"/hub"+path, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		m.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(body), err}
}

// want fails the test unless the answer has a status, and an error code of the hub (empty: not compared).
func (m *mirrors) want(what string, got reply, status int, code string) {
	m.t.Helper()
	if got.status != status || code != "" && got.header.Get("X-Error-Code") != code {
		m.t.Errorf("%s: %d %s %.200q, want %d %s", what, got.status, got.header.Get("X-Error-Code"), got.body, status, code)
	}
}

func private(id string, size int, readers ...string) *hubtest.Repo {
	return &hubtest.Repo{Kind: "models", ID: id, Private: true, Readers: readers, Files: map[string]hubtest.File{
		"weights.bin": {Text: content(id, 0, size), LFS: true}, "config.json": {Text: `{"of": "` + id + `"}`},
	}}
}

func at(r *hubtest.Repo, name string) string {
	return "/" + r.ID + "/resolve/" + r.Commit() + "/" + name
}

func TestHubRights(t *testing.T) {
	t.Parallel()
	secret, other := private("acme/secret", 9<<20, hubToken), private("acme/other", 5000, otherHubToken)
	gated := &hubtest.Repo{Kind: "models", ID: "acme/gated", Gated: true, Readers: []string{hubToken}, Files: map[string]hubtest.File{"a.bin": {Text: "gated", LFS: true}}}
	hub := hubtest.Start(t, secret, other, gated)
	m := startMirrors(t, 3, hub, "24h")
	for i := range m.nodes {
		for _, owner := range []string{token, hubToken} { // the namespace's token, and a user's own
			if got := m.ask(i, http.MethodGet, owner, at(secret, "weights.bin")); got.status != http.StatusOK || got.body != secret.Files["weights.bin"].Text {
				t.Errorf("node %d: %d with %d bytes, %v, want the file", i, got.status, len(got.body), got.err)
			}
		}
		m.want("a gated file for a reader", m.ask(i, http.MethodGet, token, at(gated, "a.bin")), http.StatusOK, "")
		for _, path := range []string{at(secret, "weights.bin"), "/api/models/acme/secret/tree/" + secret.Commit(), "/api/models/acme/secret", "/acme/secret/resolve/main/config.json"} {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				m.want("another namespace's "+method+" "+path, m.ask(i, method, otherToken, path), http.StatusUnauthorized, "RepoNotFound")
				m.want("nobody's "+method+" "+path, m.ask(i, method, "", path), http.StatusUnauthorized, "RepoNotFound")
				m.want("another user's "+method+" "+path, m.ask(i, method, otherHubToken, path), http.StatusNotFound, "RepoNotFound")
				m.want("an invalid user's "+method+" "+path, m.ask(i, method, "hf_invalid", path), http.StatusUnauthorized, "")
				m.want("an invalid cluster token's "+method+" "+path, m.ask(i, method, "made-up", path), http.StatusUnauthorized, "")
			}
		}
		m.want("a gated file for others", m.ask(i, http.MethodGet, otherHubToken, at(gated, "a.bin")), http.StatusForbidden, "GatedRepo")
		// The commit and the digests of another repository are no way to its files.
		m.want("a commit of another repository", m.ask(i, http.MethodGet, otherHubToken, "/acme/other/resolve/"+secret.Commit()+"/weights.bin"), http.StatusNotFound, "RevisionNotFound")
		m.want("who the cluster's token is", m.ask(i, http.MethodGet, token, "/api/whoami-v2"), http.StatusOK, "")
		m.want("a cluster token's write", m.ask(i, http.MethodPost, token, "/api/models/acme/secret/commit/main"), http.StatusForbidden, "")
		m.want("a cluster token's way to a write token", m.ask(i, http.MethodGet, token, "/api/models/acme/secret/xet-write-token/main"), http.StatusForbidden, "")
		m.want("a user's write", m.ask(i, http.MethodPost, hubToken, "/api/models/acme/secret/commit/main"), http.StatusNotFound, "") // as the stand-in hub answers
	}
	for _, mine := range []string{token, otherToken, "made-up"} {
		if hub.Saw(mine) {
			t.Errorf("the hub got the cluster's token %q", mine)
		}
	}
	if hub.Requests("POST /api/models/acme/secret/commit/main") != len(m.nodes) {
		t.Error("not every write of the hub's user, or one of the cluster's, reached the hub")
	}
	if m.total("refused_total") == 0 {
		t.Error("refused_total is 0")
	}
}

// TestHubRevokedToken checks that a token that the hub revoked reads for at most a minute.
func TestHubRevokedToken(t *testing.T) {
	if testing.Short() {
		t.Skip("make nightly runs it")
	}
	t.Parallel()
	secret := private("acme/secret", 1000, hubToken)
	hub := hubtest.Start(t, secret)
	m := startMirrors(t, 1, hub, "24h")
	path := at(secret, "weights.bin")
	m.want("before", m.ask(0, http.MethodGet, token, path), http.StatusOK, "")
	hub.Change(func(h *hubtest.Hub) { delete(h.Tokens, hubToken) })
	deadline.Eventually(t, func() error {
		if got := m.ask(0, http.MethodGet, token, path); got.status != http.StatusUnauthorized {
			return fmt.Errorf("after: %d, want %d", got.status, http.StatusUnauthorized)
		}
		return nil
	})
}

// TestHubPathTricks sends targets that a server could resolve to another repository's path.
func TestHubPathTricks(t *testing.T) {
	t.Parallel()
	secret, mine := private("acme/secret", 1000, hubToken), private("acme/mine", 1000, otherHubToken)
	hub := hubtest.Start(t, secret, mine)
	m := startMirrors(t, 1, hub, "24h")
	m.want("the owner's read", m.ask(0, http.MethodGet, token, at(secret, "weights.bin")), http.StatusOK, "")
	before := hub.Sent("weights.bin")
	base, end := "/hub"+at(mine, ""), "acme/secret/resolve/"+secret.Commit()+"/weights.bin"
	for _, target := range []string{
		base + "../../../../" + end, base + "..%2f..%2f..%2f..%2f" + end, base + "%2e%2e/%2e%2e/%2e%2e/%2e%2e/" + end, base + "..%5c..%5c..%5c..%5c" + end,
		base + "./weights.bin", base + "/weights.bin", base + "weights.bin%00.txt", base + "weights.bin%2f..%2fweights.bin", base + "%252e%252e/" + end,
		"/hub/acme%2fsecret/resolve/" + secret.Commit() + "/weights.bin", "/hub//acme/secret/resolve/main/weights.bin", "/hub/acme/mine/../secret/resolve/main/weights.bin",
		"/hub/api/models/acme/mine/../secret/tree/main", "/hub/api/models/acme/mine/tree/main/..%2f..%2f..%2fsecret", "/hub/acme/mine/resolve/..%2f..%2fsecret%2fresolve%2fmain/weights.bin",
		"/v1/mirror/hub/acme/secret/resolve/main/weights.bin", "/v1/mirror/objects/models/sha256%2f" + sum(secret.Files["weights.bin"].Text) + "%230", "/hub/../v1/objects/models/x",
	} {
		for _, at := range []struct{ url, prefix, hop string }{
			{m.nodes[0].mirror(), "", "0"}, {m.nodes[0].url, "/v1/mirror", "0"}, {m.nodes[0].url, "/v1/mirror", "document"}, {m.nodes[0].url, "/v1/mirror", ""},
		} {
			status, body := raw(t, at.url, at.prefix+target, otherHubToken, at.hop)
			isRefusal := status >= 400 && status < 500 || at.hop == "document" && strings.Contains(body, `"Refused":true`)
			if !isRefusal || strings.Contains(body, "acme/secret round") {
				t.Errorf("%s%s at %s: %d %.80q, want a refusal", at.prefix, target, at.url, status, body)
			}
		}
	}
	if sent := hub.Sent("weights.bin"); sent != before {
		t.Errorf("the hub sent %d bytes more", sent-before)
	}
}

// raw sends a GET with a target that clients would normalize.
func raw(t *testing.T, url, target, token, hop string) (status int, body string) {
	t.Helper()
	return rawWith(t, url, target, "Bearer "+token, hop)
}

// rawWith is raw with a whole Authorization header. The URL may have a path, which precedes the target.
func rawWith(t *testing.T, url, target, authorization, hop string) (status int, body string) {
	t.Helper()
	address, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	if path != "" {
		target = "/" + path + target
	}
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nDatacache-Mirror: %s\r\nConnection: close\r\n\r\n", target, authorization, hop)
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	return response.StatusCode, string(text)
}

// TestHubPoison has the hub send other bytes than it announced.
func TestHubPoison(t *testing.T) {
	t.Parallel()
	large, small := private("acme/large", 20<<20, hubToken), private("acme/small", 5000, hubToken)
	hub := hubtest.Start(t, large, small)
	m := startMirrors(t, 3, hub, "24h")
	poison := func(w http.ResponseWriter, text string) bool {
		bad := []byte(text)
		bad[len(bad)-1] ^= 1
		_, _ = w.Write(bad)
		return true
	}
	hub.Change(func(h *hubtest.Hub) { h.Fault = poison })
	got := m.ask(0, http.MethodGet, token, at(large, "weights.bin"))
	if !errors.Is(got.err, io.ErrUnexpectedEOF) || len(got.body) >= 20<<20 {
		t.Errorf("a poisoned file: %d bytes and %v, want fewer than it has", len(got.body), got.err)
	}
	m.want("a poisoned small file", m.ask(0, http.MethodGet, token, at(small, "weights.bin")), http.StatusBadGateway, "")
	if m.total("poisoned_total") < 2 {
		t.Errorf("poisoned_total is %g, want one for each file", m.total("poisoned_total"))
	}
	hub.Change(func(h *hubtest.Hub) { h.Fault = nil })
	for i := range m.nodes {
		for _, repo := range []*hubtest.Repo{large, small} {
			if got := m.ask(i, http.MethodGet, token, at(repo, "weights.bin")); got.status != http.StatusOK || got.body != repo.Files["weights.bin"].Text {
				t.Errorf("node %d after the poison: %d, %d bytes, %v, want the file", i, got.status, len(got.body), got.err)
			}
		}
	}
}
