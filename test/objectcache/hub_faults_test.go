// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/hubtest"
)

// TestHubFaults has the hub answer reads with 429, 500, broken and truncated answers: clients get the files nevertheless.
func TestHubFaults(t *testing.T) {
	t.Parallel()
	repo := model("acme/bert")
	hub := hubtest.Start(t, repo)
	m := startMirrors(t, 2, hub, "24h")
	var mu sync.Mutex
	reads := map[string]int{} // by the file's text
	hub.Change(func(h *hubtest.Hub) {
		h.Fault = func(w http.ResponseWriter, text string) bool {
			mu.Lock()
			reads[text]++
			n := reads[text]
			mu.Unlock()
			switch n {
			case 1:
				w.Header().Set("Retry-After", "1")
				http.Error(w, "slow down", http.StatusTooManyRequests)
			case 2:
				w.Header().Set("Content-Length", strconv.Itoa(len(text)))
				_, _ = w.Write([]byte(text[:len(text)/2]))
				panic(http.ErrAbortHandler)
			case 3:
				http.Error(w, "oops", http.StatusInternalServerError)
			default:
				return false
			}
			return true
		}
	})
	got := hubClients(t, m.nodes[0].mirror()+"/hub", "", job{"do": "snapshot", "repo": repo.ID, "dir": t.TempDir()})
	wantResult(t, "through faults", got[0], sums(repo))
}

// TestHubDown stops the hub: what was read remains readable for those who had read it, and nothing else.
func TestHubDown(t *testing.T) {
	t.Parallel()
	repo := model("acme/bert")
	secret := private("acme/secret", 100, hubToken)
	hub := hubtest.Start(t, repo, secret)
	m := startMirrors(t, 1, hub, "24h")
	endpoint := m.nodes[0].mirror() + "/hub"
	wantResult(t, "before", hubClients(t, endpoint, "", job{"do": "snapshot", "repo": repo.ID, "dir": t.TempDir()})[0], sums(repo))
	m.want("before", m.ask(0, http.MethodGet, token, at(secret, "config.json")), http.StatusOK, "")
	hub.Stop()
	wantResult(t, "while it is down", hubClients(t, endpoint, "", job{"do": "snapshot", "repo": repo.ID, "dir": t.TempDir()})[0], sums(repo))
	m.want("HEAD of what was not read", m.ask(0, http.MethodHead, token, at(secret, "weights.bin")), http.StatusServiceUnavailable, "")
	m.want("GET of what was not read", m.ask(0, http.MethodGet, token, at(secret, "weights.bin")), http.StatusTooManyRequests, "")
	m.want("GET by somebody who had not read it", m.ask(0, http.MethodGet, otherToken, at(secret, "config.json")), http.StatusTooManyRequests, "")
	deadline.Eventually(t, func() error { // the branch's commit has aged after 30 s
		m.want("a branch", m.ask(0, http.MethodGet, token, "/acme/secret/resolve/main/config.json"), http.StatusTooManyRequests, "")
		m.want("a branch that was read", m.ask(0, http.MethodGet, "", "/api/models/acme/bert/revision/main"), http.StatusOK, "")
		if m.total("stale_total") == 0 {
			return errors.New("nothing stale was served")
		}
		return nil
	})
}

// TestHubOwnerDies kills one of three nodes: clients of the others get all files.
func TestHubOwnerDies(t *testing.T) {
	t.Parallel()
	repo := private("acme/secret", 40<<20, hubToken)
	hub := hubtest.Start(t, repo)
	m := startMirrors(t, 3, hub, "24h")
	want := repo.Files["weights.bin"].Text
	check := func(what string, node int) {
		t.Helper()
		if got := m.ask(node, http.MethodGet, token, at(repo, "weights.bin")); got.status != http.StatusOK || got.body != want {
			t.Errorf("%s: %d, %d bytes, %v, want the file", what, got.status, len(got.body), got.err)
		}
	}
	check("before", 0)
	m.nodes[2].kill()
	check("after, at the node that read it", 0)
	check("after, at another node", 1)
	if sent := hub.Sent("weights.bin"); sent >= 2*int64(len(want)) {
		t.Errorf("the hub sent %d bytes of %d, want each block once and the dead node's again", sent, len(want))
	}
}

// TestHubRewrites checks that nothing in answers leads clients past the mirror.
func TestHubRewrites(t *testing.T) {
	t.Parallel()
	repo := private("acme/secret", 100, hubToken)
	hub := hubtest.Start(t, repo)
	hub.Page = 1
	m := startMirrors(t, 1, hub, "24h")
	for _, path := range []string{at(repo, "weights.bin"), at(repo, "config.json"), "/api/models/acme/secret", "/api/models/acme/secret/tree/main", "/api/models/acme/secret/tree/main?cursor=1", "/api/models/acme/secret/commits/main"} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			got := m.ask(0, method, token, path)
			for name, values := range got.header {
				if text := strings.Join(values, " "); strings.Contains(name, "Xet") || strings.Contains(text, "xet") || strings.Contains(text, hub.URL) {
					t.Errorf("%s %s: %s: %s", method, path, name, text)
				}
			}
			if strings.Contains(got.body, "xetHash") || strings.Contains(got.body, hub.URL) {
				t.Errorf("%s %s: %s", method, path, got.body)
			}
		}
	}
	next := m.ask(0, http.MethodGet, token, "/api/models/acme/secret/tree/main").header.Get("Link")
	if want := "<" + m.nodes[0].mirror() + "/hub/api/models/acme/secret/tree/main?cursor=1>; rel=\"next\""; next != want {
		t.Errorf("Link: %s, want %s", next, want)
	}
	if got := m.ask(0, http.MethodHead, token, at(repo, "weights.bin")); got.header.Get("X-Linked-Size") != "100" || got.header.Get("X-Repo-Commit") != repo.Commit() {
		t.Errorf("HEAD: %v, want size and commit", got.header)
	}
}
