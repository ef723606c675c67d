// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"archive/tar"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/hubtest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// TestNothingIsSniffed checks that no answer lets a browser guess a type other than the declared one, since writers choose the bytes.
func TestNothingIsSniffed(t *testing.T) {
	t.Parallel()
	repo := model("acme/bert")
	m := startMirrors(t, 1, hubtest.Start(t, repo), "24h")
	p := m.nodes[0]
	p.put("open/page.html", "<script>alert(1)</script>")
	for _, url := range []string{
		p.watched + "/", p.watched + "/report.html", p.watched + "/status", p.watched + "/history.json", p.watched + "/ready", p.watched + "/healthz",
		p.watched + "/metrics", p.watched + "/page.js", p.watched + "/none", p.url + "/v1/objects/open/page.html", p.url + "/v1/objects/open/none", p.url + "/v1/alive",
		m.nodes[0].mirror() + "/hub" + at(repo, "config.json"), m.nodes[0].mirror() + "/hub/api/models/acme/bert", m.nodes[0].mirror() + "/v2/",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if got := response.Header.Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("%s: X-Content-Type-Options is %q", url, got)
		}
	}
}

// TestBatchNamesStayBelow reads, as a tar stream, keys that are paths out of the folder in which somebody unpacks it.
func TestBatchNamesStayBelow(t *testing.T) {
	t.Parallel()
	addresses := []string{proctest.FreeAddress(t), proctest.FreeAddress(t)}
	peers := []string{"--peer", "here=" + addresses[0], "--peer", "there=" + addresses[1]}
	p := start(t, options{args: append([]string{"--listen", addresses[0]}, peers...)})
	start(t, options{args: append([]string{"--listen", addresses[1], "--name", "there"}, peers...)})
	names := map[string]string{ // by key
		"../../etc/passwd": "%2E%2E/%2E%2E/etc/passwd", "/etc/passwd": "%2Fetc/passwd", "//x//y": "%2F%2Fx//y", "..": "%2E%2E", "a/../../b": "a/%2E%2E/%2E%2E/b",
		"a/..": "a/%2E%2E", "..a/b..": "..a/b..", "plain": "plain",
	}
	var keys []string
	for key := range names {
		p.put("open/"+key, key)
		keys = append(keys, key, "none/"+key, key+"-none")
	}
	response := p.post(t, "open?batch", strings.Join(keys, "\n"))
	defer response.Body.Close()
	archive := tar.NewReader(response.Body)
	for _, key := range keys {
		header, err := archive.Next()
		if err != nil {
			t.Fatalf("%s: %d, %v", key, response.StatusCode, err)
		}
		if !filepath.IsLocal(header.Name) {
			t.Errorf("the key %s has the name %s, which is outside", key, header.Name)
		}
		want, stored := names[key]
		exact := header.PAXRecords["DATACACHE.key"]
		if stored && (header.Name != want || want != key && exact != key || want == key && exact != "") {
			t.Errorf("the key %s has the name %s and the record %q, want the name %s", key, header.Name, exact, want)
		}
		if missing := header.PAXRecords["DATACACHE.status"] == "404"; missing == stored {
			t.Errorf("the key %s is missing = %v", key, missing)
		}
	}
}

func (p *process) post(t *testing.T, target, body string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/objects/"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	return response
}
