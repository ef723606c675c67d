// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/test/kit/promtest"
)

// patience is how long tests wait for an event; it is long because the machine may be busy.
const patience = 2 * time.Minute

var cacheserver string // the program

func TestMain(m *testing.M) {
	os.Exit(proctest.Run("monitoring", false, func(binary string) int {
		cacheserver = binary
		return m.Run()
	}))
}

// TestRulesNameRealMetrics checks that running servers export every metric that a rule names. test/install checks those of the manager.
func TestRulesNameRealMetrics(t *testing.T) {
	exported := cacheMetrics(t)
	maps.Copy(exported, objectCacheMetrics(t))
	for _, rule := range rules(t).Rules() {
		for _, name := range promtest.Metrics(rule.Expr) {
			if !exported[name] && !promtest.OfManager(name) {
				t.Errorf("%s names the metric %s, which no server exports", rule.Alert, name)
			}
		}
	}
}

// cacheMetrics returns the names of what a loaded cache exports.
func cacheMetrics(t *testing.T) map[string]bool {
	t.Helper()
	table := icetest.Local(t).Plain("events", 2, 1, 100, 100)
	_, url := start(t, "local", "--metadata", table.Metadata(), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--memory-limit", "256Mi")
	return scrape(t, url)
}

// objectCacheMetrics returns the names of what an object cache exports after a hit and a miss.
func objectCacheMetrics(t *testing.T) map[string]bool {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tokens"), []byte("secret team-a\n"))
	write(t, filepath.Join(dir, "buckets.json"), []byte(`{"Bucket": [{"Name": "open", "Public": true, "BucketQuota": "1Mi"}]}`))
	data, url := start(t, "object-cache", "--standalone", "--tokens", filepath.Join(dir, "tokens"), "--buckets", filepath.Join(dir, "buckets.json"),
		"--dir", filepath.Join(dir, "objects"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--name", "here", "--min-free", "0")
	for _, r := range []struct {
		method, key string
		status      int
	}{{http.MethodPut, "a", http.StatusCreated}, {http.MethodGet, "a", http.StatusOK}, {http.MethodGet, "b", http.StatusNotFound}} {
		request, err := http.NewRequestWithContext(t.Context(), r.method, data+"/v1/objects/open/"+r.key, strings.NewReader("some bytes"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer secret")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != r.status {
			t.Fatalf("%s %s: %s, want %d", r.method, r.key, response.Status, r.status)
		}
	}
	return scrape(t, url)
}

// start runs cacheserver until the end of the test, and returns the two addresses of its line "ready DATA HTTP".
func start(t *testing.T, args ...string) (data, url string) {
	t.Helper()
	p := proctest.Start(t, args[0], []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, cacheserver, args...)
	proctest.Eventually(t, patience, func() error {
		p.Alive()
		_, line, _ := strings.Cut("\n"+p.Output.String(), "\nready ")
		line, _, whole := strings.Cut(line, "\n")
		if !whole {
			return errors.New(`no line "ready"`)
		}
		data, url, _ = strings.Cut(line, " ")
		return nil
	})
	return data, url
}

func scrape(t *testing.T, url string) map[string]bool {
	t.Helper()
	status, text, err := proctest.Request(t.Context(), http.DefaultClient, http.MethodGet, url+"/metrics")
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	return promtest.Names(text)
}
