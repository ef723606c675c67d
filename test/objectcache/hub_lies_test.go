// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/kubeflow/datacache/test/kit/hubtest"
)

// part reads a range of a repository's file from a node.
func (m *mirrors) part(node int, r *hubtest.Repo, name string, first, length int) reply {
	m.t.Helper()
	request, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, m.nodes[node].mirror()+"/hub"+at(r, name), nil)
	if err != nil {
		m.t.Fatal(err)
	}
	request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+length-1))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		m.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(body), err}
}

// TestHubLyingRepository has a repository announce the digest of another's file and send other bytes: readers of the other one never get
// them, whoever reads first, and nothing is removed that was not its own. Once the digest is proven, all repositories share one copy.
func TestHubLyingRepository(t *testing.T) {
	t.Parallel()
	const size, block = 20<<20 + 5, 8 << 20
	text, lie := content("honest", 0, size), content("lying!", 0, size)
	repo := func(id, name string, f hubtest.File) *hubtest.Repo {
		f.LFS = true
		return &hubtest.Repo{Kind: "models", ID: id, Files: map[string]hubtest.File{name: f}}
	}
	honest, liar, third := repo("acme/honest", "honest.bin", hubtest.File{Text: text}), repo("evil/liar", "liar.bin", hubtest.File{Text: lie, Claims: text}),
		repo("acme/third", "third.bin", hubtest.File{Text: text})
	hub := hubtest.Start(t, honest, liar, third)
	m := startMirrors(t, 3, hub, "24h")
	for n := range 3 {
		first := n * block
		if got := m.part(n, liar, "liar.bin", first, 1000); got.status != http.StatusPartialContent {
			t.Fatalf("the liar's range: %d %v", got.status, got.err)
		}
		if got := m.part(n, honest, "honest.bin", first, 1000); got.body != text[first:first+1000] {
			t.Errorf("block %d of the honest repository: %d %.40q, want %.40q", n, got.status, got.body, text[first:])
		}
	}
	if got := m.ask(0, http.MethodGet, "", at(liar, "liar.bin")); !errors.Is(got.err, io.ErrUnexpectedEOF) {
		t.Errorf("the liar's whole file: %d, %d bytes, %v, want fewer than it has", got.status, len(got.body), got.err)
	}
	for n := range 3 {
		if got := m.ask(n, http.MethodGet, "", at(honest, "honest.bin")); got.body != text {
			t.Errorf("the honest file at node %d: %d, %d bytes, %v", n, got.status, len(got.body), got.err)
		}
	}
	if sent := hub.Sent("honest.bin"); sent != size {
		t.Errorf("the hub sent %d bytes of the honest file, want each block once: %d", sent, size)
	}
	for n := range 3 {
		if got := m.ask(n, http.MethodGet, "", at(third, "third.bin")); got.body != text {
			t.Errorf("the same file of a third repository at node %d: %d, %d bytes, %v", n, got.status, len(got.body), got.err)
		}
	}
	if sent := hub.Sent("third.bin"); sent != 0 {
		t.Errorf("the hub sent %d bytes of a file whose digest is proven and whose blocks are here", sent)
	}
}
