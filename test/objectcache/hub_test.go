// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/hubtest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const mirrorBuckets = `{"TotalLimit": "1Gi", "Bucket": [
	{"Name": "open", "Public": true, "BucketQuota": "100Mi"},
	{"Name": "models", "Mirror": true, "BucketQuota": "800Mi"},
	{"Name": "images", "Mirror": true, "BucketQuota": "800Mi"}]}`

// hubToken and otherHubToken are tokens of the hub. The first is also the one of namespace team-a, which has the cluster's token
// "secret-of-team-a"; team-b has none.
const (
	hubToken      = "hf_reader"
	otherHubToken = "hf_other"
)

// mirrors are object caches that mirror a hub.
type mirrors struct {
	t      *testing.T
	hub    *hubtest.Hub
	nodes  []*process
	tokens string // folder of the namespaces' tokens at the hub
}

// startMirrors runs n object caches that share the keys and mirror the hub. stale is staleIfError.
func startMirrors(t *testing.T, n int, hub *hubtest.Hub, stale string) *mirrors {
	t.Helper()
	home := t.TempDir()
	m := &mirrors{t: t, hub: hub, tokens: filepath.Join(home, "hub-tokens")}
	if err := os.Mkdir(m.tokens, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(m.tokens, "team-a"), hubToken+"\n")
	config := write(t, filepath.Join(home, "mirrors.yaml"),
		fmt.Sprintf("staleIfError: %s\nhub: {upstream: %q, bucket: models, tokens: %q}\n", stale, hub.URL, m.tokens))
	m.nodes = startNodes(t, n, "--mirrors", config)
	return m
}

// startNodes runs n object caches that share the keys, with mirrors.
func startNodes(t *testing.T, n int, args ...string) []*process {
	t.Helper()
	bucketsFile := write(t, filepath.Join(t.TempDir(), "buckets.json"), mirrorBuckets)
	var addresses, peers []string
	for i := range n {
		addresses = append(addresses, proctest.FreeAddress(t))
		peers = append(peers, "--peer", fmt.Sprintf("node-%d=%s", i, addresses[i]))
	}
	var nodes []*process
	for i, address := range addresses {
		own := append([]string{"--name", fmt.Sprintf("node-%d", i), "--listen", address, "--mirror-listen", "127.0.0.1:0", "--log-level", "debug"}, peers...)
		nodes = append(nodes, start(t, options{buckets: bucketsFile, args: append(own, args...)}))
	}
	return nodes
}

// mirror is the URL of a node's mirrors.
func (p *process) mirror() string {
	p.t.Helper()
	_, line, _ := strings.Cut("\n"+p.server.Output.String(), "\nmirrors ")
	url, _, whole := strings.Cut(line, "\n")
	if !whole {
		p.t.Fatal("no line \"mirrors\"")
	}
	return url
}

// total sums a metric of the mirrors over all nodes.
func (m *mirrors) total(name string) (sum float64) {
	m.t.Helper()
	for _, node := range m.nodes {
		sum += node.series("datacache_mirror_" + name)
	}
	return sum
}

type (
	job    map[string]any
	result struct {
		Result any
		Error  string
		Status int
		Text   string
	}
)

// hubClients runs jobs in one Python process. token is written to the file that HF_TOKEN_PATH names; empty: no token.
func hubClients(t *testing.T, endpoint, token string, jobs ...job) []result {
	t.Helper()
	return startHubClients(t, endpoint, token, jobs...)()
}

// startHubClients is hubClients that does not wait: the function that it returns does.
func startHubClients(t *testing.T, endpoint, token string, jobs ...job) (wait func() []result) {
	t.Helper()
	python := os.Getenv("DATACACHE_HUB_PYTHON")
	if python == "" {
		t.Skip("DATACACHE_HUB_PYTHON names no Python that has huggingface_hub: run by make, which makes one of hack/python/hub.txt")
	}
	text, err := json.Marshal(jobs)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), python, "hub_client.py", string(text))
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "HF_HOME=" + home, "HF_ENDPOINT=" + endpoint, "HF_TOKEN_PATH=" + write(t, filepath.Join(home, "t"), token),
		"HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_ETAG_TIMEOUT=60", "HF_HUB_DOWNLOAD_TIMEOUT=60",
	}
	out, says := &output{}, &output{}
	cmd.Stdout, cmd.Stderr = out, says
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() []result {
		t.Helper()
		err := cmd.Wait()
		var results []result
		if err == nil {
			err = json.Unmarshal([]byte(out.String()), &results)
		}
		if err != nil {
			t.Fatalf("the hub's client: %v: %s\n%s", err, out, says)
		}
		return results
	}
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// sums is what the job "snapshot" returns for a repository.
func sums(r *hubtest.Repo) map[string]any {
	want := map[string]any{}
	for name, f := range r.Files {
		want[name] = sum(f.Text)
	}
	return want
}

// model is a repository with files below and above a block's length.
func model(id string) *hubtest.Repo {
	return &hubtest.Repo{Kind: "models", ID: id, Files: map[string]hubtest.File{
		"config.json":              {Text: `{"model_type": "bert", "of": "` + id + `"}`},
		"model.safetensors":        {Text: content(id, 1, 20<<20+12345), LFS: true},
		"sub dir/tokens+and=more":  {Text: content(id, 2, 300)},
		"original/consolidated.00": {Text: content(id, 3, 8<<20), LFS: true},
		"empty.txt":                {Text: ""},
	}}
}

func wantResult(t *testing.T, what string, got result, want any) {
	t.Helper()
	if got.Error != "" {
		t.Errorf("%s: %s %d: %s", what, got.Error, got.Status, got.Text)
		return
	}
	gotText, _ := json.Marshal(got.Result)
	wantText, _ := json.Marshal(want)
	if string(gotText) != string(wantText) {
		t.Errorf("%s:\n%s, want\n%s", what, gotText, wantText)
	}
}

func TestHubSnapshot(t *testing.T) {
	t.Parallel()
	repo := model("acme/bert")
	repo.Readers = []string{hubToken}
	hub := hubtest.Start(t, repo)
	hub.Page = 2
	m := startMirrors(t, 1, hub, "24h")
	endpoint := m.nodes[0].mirror() + "/hub"
	for _, round := range []string{"cold", "warm"} {
		got := hubClients(t, endpoint, "", job{"do": "snapshot", "repo": repo.ID, "dir": t.TempDir()})
		wantResult(t, round, got[0], sums(repo))
	}
	for name, f := range repo.Files {
		if sent := hub.Sent(name); sent != int64(len(f.Text)) {
			t.Errorf("the hub sent %d bytes of %s, want %d", sent, name, len(f.Text))
		}
	}
	if got := m.total("poisoned_total"); got != 0 {
		t.Errorf("poisoned_total is %g", got)
	}
}

// TestHubOneCopy checks that 20 clients of three nodes, at once, read each file once from the hub.
func TestHubOneCopy(t *testing.T) {
	t.Parallel()
	repo := model("acme/bert")
	hub := hubtest.Start(t, repo)
	m := startMirrors(t, 3, hub, "24h")
	const clients = 20
	var waits []func() []result
	for i, node := range m.nodes {
		var jobs []job
		for range (clients + i) / len(m.nodes) { // 6, 7 and 7
			jobs = append(jobs, job{"do": "snapshot", "repo": repo.ID, "dir": t.TempDir()})
		}
		waits = append(waits, startHubClients(t, node.mirror()+"/hub", "", jobs...))
	}
	n := 0
	for i, wait := range waits {
		for _, r := range wait() {
			n++
			wantResult(t, fmt.Sprintf("client %d of node %d", n, i), r, sums(repo))
		}
	}
	if n != clients {
		t.Errorf("%d clients had an answer, want %d", n, clients)
	}
	for name, f := range repo.Files {
		if sent := hub.Sent(name); sent != int64(len(f.Text)) {
			t.Errorf("the hub sent %d bytes of %s, want %d", sent, name, len(f.Text))
		}
	}
	if got, want := m.total("origin_bytes_total"), 28<<20; got < float64(want) || got > float64(want)+64<<10 {
		t.Errorf("origin_bytes_total is %g, want little more than %d", got, want)
	}
	t.Logf("HEADs of the largest file at the hub: %d", hub.Requests("HEAD /"+repo.ID+"/resolve/"+repo.Commit()+"/model.safetensors"))
}

// TestHubTrafficIsOnThePage reads a file twice through two nodes: their pages count it with the bucket's traffic.
func TestHubTrafficIsOnThePage(t *testing.T) {
	t.Parallel()
	const size = 45 << 20
	repo := private("acme/secret", size, hubToken)
	m := startMirrors(t, 2, hubtest.Start(t, repo), "24h")
	for range 2 {
		m.want("the file", m.ask(0, http.MethodGet, token, at(repo, "weights.bin")), http.StatusOK, "")
	}
	total := map[string]float64{}
	for _, p := range m.nodes {
		for _, name := range []string{"hits", "misses", "sent_bytes", "received_bytes"} {
			total[name] += p.series("datacache_objectcache_" + name + "_total")
		}
		var page struct {
			View struct {
				Tables []struct {
					ID   string
					Head []string
					Rows [][]struct{ Text string }
				}
			}
			Series []struct {
				Name   string
				Values []float64
			}
		}
		if err := json.Unmarshal([]byte(get(t, p.watched+"/history.json")), &page); err != nil {
			t.Fatal(err)
		}
		for _, row := range page.View.Tables[0].Rows {
			for column, head := range page.View.Tables[0].Head {
				if row[0].Text == "models" && slices.Contains([]string{"Reads", "Sent", "Received"}, head) && strings.HasPrefix(row[column].Text, "0") {
					t.Errorf("on the page of %s, %s of the mirror's bucket is %q", p.url, head, row[column].Text)
				}
			}
		}
	}
	if total["received_bytes"] < size || total["received_bytes"] > size+1<<20 || total["sent_bytes"] < 2*size || total["sent_bytes"] > 2*size+1<<20 || total["misses"] < 6 || total["hits"] < 6 {
		t.Errorf("%v, want what came from the hub, and was sent, twice, and reads", total)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	_, text, err := proctest.Request(t.Context(), http.DefaultClient, http.MethodGet, url)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestHubParameters asks for documents with parameters: those on which the hub's answers depend are part of what is kept, in any order, and
// answers with others are passed on and not kept.
func TestHubParameters(t *testing.T) {
	t.Parallel()
	repo := model("acme/bert")
	hub := hubtest.Start(t, repo)
	m := startMirrors(t, 2, hub, "24h")
	tree := "/api/models/acme/bert/tree/" + repo.Commit()
	for _, test := range []struct {
		query    string
		requests int // at the hub, after all so far
	}{
		{"", 1}, {"", 1}, {"?recursive=true&expand=false", 2}, {"?expand=false&recursive=true", 2}, {"?recursive=true&x=1", 3}, {"?recursive=true&x=1", 4},
		{"?recursive=maybe", 5}, {"?recursive=maybe", 6}, {"?x=2", 7}, {"", 7},
	} {
		got := m.ask(0, http.MethodGet, "", tree+test.query)
		m.want(test.query, got, http.StatusOK, "")
		if isRecursive := strings.Contains(got.body, "consolidated"); isRecursive != strings.Contains(test.query, "recursive=true") {
			t.Errorf("%s: %s", test.query, got.body)
		}
		if got := hub.Requests("GET " + tree); got != test.requests {
			t.Errorf("%s: %d requests at the hub, want %d", test.query, got, test.requests)
		}
	}
}
