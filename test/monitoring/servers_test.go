// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/hubtest"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/test/kit/promtest"
	"github.com/kubeflow/datacache/test/kit/readtest"
)

// startCache runs a head and a data node, and a reader, until the end of the test. The targets have the labels of pods.
func startCache(t *testing.T) []promtest.Pod {
	t.Helper()
	table := icetest.Local(t).Plain("events", 2, 2, 1000, 100)
	head, node := proctest.FreeAddress(t), proctest.FreeAddress(t)
	launch(t, "node", "--head", head, "--index", "0", "--listen", "127.0.0.1:0", "--http", node, "--memory-limit", "256Mi")
	_, flight, watched := start(t, "head", "--metadata", table.Metadata(), "--nodes", "1", "--listen", head, "--http", "127.0.0.1:0")
	reader := readtest.New(flight)
	t.Cleanup(reader.Close)
	during(t, func(ctx context.Context) error { return reader.Epochs(ctx, 0) })
	labels := map[string]string{"app.kubernetes.io/managed-by": "datacache", "datacache.kubeflow.org/cache": cache}
	pod := func(url, name, port string) promtest.Pod {
		return promtest.Pod{URL: url, Namespace: namespace, Name: name, Port: port, Labels: labels}
	}
	return []promtest.Pod{pod(watched, cache+"-0", "http"), pod("http://"+node, cache+"-0-1", "http"), pod("", cache+"-0", "flight")}
}

// startObjectCache runs an object cache with a mirror of a hub and an xDS server, and clients, until the end of the test.
func startObjectCache(t *testing.T) []promtest.Pod {
	t.Helper()
	const config = "config.json"
	repo := &hubtest.Repo{Kind: "models", ID: "acme/bert", Files: map[string]hubtest.File{config: {Text: "{}"}}}
	hub := hubtest.Start(t, repo)
	tokens := file(t, "tokens", "secret team-a\n")
	buckets := file(t, "buckets.json", `{"Bucket": [
		{"Name": "open", "Public": true, "BucketQuota": "1Mi"},
		{"Name": "models", "Mirror": true, "BucketQuota": "1Mi"}]}`)
	mirrors := file(t, "mirrors.yaml", fmt.Sprintf("hub: {upstream: %q, bucket: models, tokens: %q}\n", hub.URL, t.TempDir()))
	p := run(t, filepath.Join(filepath.Dir(cacheserver), "objectcache"), "--standalone", "--tokens", tokens, "--buckets", buckets, "--dir", t.TempDir(), "--name", "here",
		"--min-free", "0", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--xds", "127.0.0.1:0",
		"--mirrors", mirrors, "--mirror-listen", "127.0.0.1:0")
	data, url := addresses(t, p)
	mirrored := printed(t, p, "mirrors") + "/hub/" + repo.ID + "/resolve/main/" + config
	during(t, func(ctx context.Context) error {
		return use(ctx, []call{
			{http.MethodPut, data + "/v1/objects/open/a", http.StatusCreated},
			{http.MethodGet, data + "/v1/objects/open/a", http.StatusOK},
			{http.MethodGet, data + "/v1/objects/open/b", http.StatusNotFound},
			{http.MethodGet, mirrored, http.StatusOK},
		})
	})
	labels := map[string]string{"app.kubernetes.io/name": "datacache", "app.kubernetes.io/component": "object-cache"}
	pod := promtest.Pod{URL: url, Namespace: namespace, Name: "object-cache-here", Port: "http", Labels: labels}
	other := pod
	other.URL, other.Port = "", "objects"
	return []promtest.Pod{pod, other}
}

// call is a request of an object cache's client, and the status of its answer.
type call struct {
	method, url string
	status      int
}

// use sends the calls ten times a second until ctx ends, and returns the first answer that is not as it should be.
func use(ctx context.Context, calls []call) error {
	every := time.NewTicker(time.Second / 10)
	defer every.Stop()
	for {
		for _, c := range calls {
			if err := c.send(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c call) send(ctx context.Context) error {
	var body io.Reader
	if c.method == http.MethodPut {
		body = strings.NewReader("some bytes")
	}
	request, err := http.NewRequestWithContext(ctx, c.method, c.url, body)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer secret")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != c.status {
		return fmt.Errorf("%s %s: %s, want %d", c.method, c.url, response.Status, c.status)
	}
	return nil
}
