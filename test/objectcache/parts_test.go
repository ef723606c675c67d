// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// TestALargeObjectFillsNoDisk stores an object that is larger than the quota of each of three nodes. One of them is lost.
func TestALargeObjectFillsNoDisk(t *testing.T) {
	t.Parallel()
	bucketsFile := write(t, filepath.Join(t.TempDir(), "buckets.json"), `{"Bucket": [{"Name": "open", "Public": true, "BucketQuota": "12Mi"}]}`)
	names := []string{"a", "b", "c"}
	addresses, dirs, nodes := map[string]string{}, map[string]string{}, map[string]*process{}
	peers := []string{"--part-size", "1Mi"}
	for _, name := range names {
		addresses[name], dirs[name] = proctest.FreeAddress(t), filepath.Join(t.TempDir(), "objects")
		peers = append(peers, "--peer", name+"="+addresses[name])
	}
	run := func(name string) {
		nodes[name] = launch(t, options{dir: dirs[name], buckets: bucketsFile, args: append([]string{"--name", name, "--listen", addresses[name]}, peers...)})
	}
	for _, name := range names {
		run(name)
	}
	for _, name := range names {
		nodes[name].await()
	}
	body := content("large", 0, 30<<20+12345)
	const key = "models//large"
	if status, text, err := ask(t, addresses["a"], http.MethodPut, key, body); err != nil || status != http.StatusCreated {
		t.Fatalf("PUT: %d %.80s %v", status, text, err)
	}
	get := func(from string, headers ...string) (status int, text string) {
		t.Helper()
		status, text, err := ask(t, addresses[from], http.MethodGet, key, "", headers...)
		if err != nil {
			t.Fatal(err)
		}
		return status, text
	}
	for _, name := range names {
		if used := nodes[name].metric("bucket_bytes"); used < 10<<20 || used > 12<<20 {
			t.Errorf("%s has %g bytes, want a third of %d", name, used, len(body))
		}
		if status, text := get(name); status != http.StatusOK || text != body {
			t.Errorf("GET from %s: %d, %d bytes, want 200 and %d", name, status, len(text), len(body))
		}
		if status, text := get(name, "Range", "bytes=1048570-3145735"); status != http.StatusPartialContent || text != body[1048570:3145736] {
			t.Errorf("a range from %s: %d, %d bytes", name, status, len(text))
		}
	}
	nodes["c"].kill()
	if status, _ := get("a"); status != http.StatusNotFound {
		t.Errorf("without one of three: %d, want 404", status)
	}
	run("c") // it removes what it has: the others have not run for long enough to say what changed meanwhile
	nodes["c"].await()
	deadline.Eventually(t, func() error { // nothing is asked of a dead node for a few seconds
		if status, text, err := ask(t, addresses["a"], http.MethodPut, key, body); err != nil || status != http.StatusCreated {
			return fmt.Errorf("PUT with the node back: %d %.80s %w, want 201", status, text, err)
		}
		return nil
	})
	for _, name := range names {
		if status, text := get(name); status != http.StatusOK || text != body {
			t.Errorf("GET from %s with the node back: %d, %d bytes, want 200 and %d", name, status, len(text), len(body))
		}
		if used := nodes[name].metric("bucket_bytes"); used < 10<<20 || used > 12<<20 {
			t.Errorf("%s has %g bytes after all, want a third of %d", name, used, len(body))
		}
	}
}

// TestLargeObjectsBehindEnvoy stores and reads an object in parts through Envoy, which only knows the owner of its key.
func TestLargeObjectsBehindEnvoy(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--part-size", "1Mi")
	e := startEnvoy(t, f.xds["a"], f.listener, "")
	e.await()
	e.becomes("cluster.objects.membership_total", 3)
	body := content("large", 0, 9<<20+5)
	for _, key := range []string{"one", "two", "three", "four"} {
		if status, text, err := ask(t, e.address, http.MethodPut, key, body); err != nil || status != http.StatusCreated {
			t.Fatalf("PUT %s: %d %.80s %v", key, status, text, err)
		}
		if status, text, err := ask(t, e.address, http.MethodGet, key, ""); err != nil || status != http.StatusOK || text != body {
			t.Errorf("GET %s: %d, %d bytes, %v", key, status, len(text), err)
		}
	}
	if n := f.forwards("a", "b", "c"); n != 0 {
		t.Errorf("%g requests were forwarded, want none: parts are counted by themselves", n)
	}
	for name, p := range f.processes {
		if used := p.metric("bucket_bytes"); used < 8<<20 || used > 17<<20 {
			t.Errorf("%s has %g bytes, want a third of %d", name, used, 4*len(body))
		}
	}
}
