// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const (
	token      = "secret-of-team-a"
	otherToken = "secret-of-team-b"
)

// process is a running object cache. It is killed at the end of its test.
type process struct {
	t       *testing.T
	url     string // of objects
	watched string // address of /ready and /metrics
	server  *proctest.Process
}

// options are a test's deviations from the defaults.
type options struct {
	dir     string   // folder for objects; default: a new one
	buckets string   // buckets file; default: a new one with defaultBuckets
	tokens  string   // the token file
	wrap    []string // a program with arguments that runs objectcache
	args    []string
}

const defaultBuckets = `{"TotalLimit": "1Gi", "Bucket": [
	{"Name": "open", "Public": true, "BucketQuota": "512Mi"},
	{"Name": "team", "BucketQuota": "512Mi", "AllowNamespaces": ["team-a"]}]}`

// start runs an object cache and waits until it is serving.
func start(t *testing.T, o options) *process {
	t.Helper()
	p := launch(t, o)
	p.await()
	return p
}

// launch starts an object cache without waiting.
func launch(t *testing.T, o options) *process {
	t.Helper()
	home := t.TempDir()
	if o.dir == "" {
		o.dir = filepath.Join(home, "objects")
	}
	if o.buckets == "" {
		o.buckets = write(t, filepath.Join(home, "buckets.json"), defaultBuckets)
	}
	if o.tokens == "" {
		o.tokens = write(t, filepath.Join(home, "tokens"), token+" team-a\n"+otherToken+" team-b\n")
	}
	args := append([]string{
		binary, "--standalone", "--tokens", o.tokens, "--buckets", o.buckets, "--dir", o.dir,
		"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--name", "here",
		"--min-free", "0", // the tests' disk may be full of other things
	}, o.args...)
	args = append(o.wrap, args...)
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}
	return &process{t: t, server: proctest.Start(t, "the object cache", env, args[0], args[1:]...)}
}

// await waits for the line with the address at which the process is serving.
func (p *process) await() {
	p.t.Helper()
	deadline.Eventually(p.t, func() error {
		p.server.Alive()
		text := p.server.Output.String()
		_, line, _ := strings.Cut("\n"+text, "\nready ")
		line, _, whole := strings.Cut(line, "\n")
		if !whole {
			return fmt.Errorf("no line \"ready\" in %q", text)
		}
		p.url, p.watched, _ = strings.Cut(line, " ")
		return nil
	})
}

// kill kills the process and waits until it is gone.
func (p *process) kill() { p.server.Kill() }

// stop terminates the process and waits until it has exited.
func (p *process) stop() {
	p.t.Helper()
	p.terminate()
	p.ends()
}

// terminate sends SIGTERM to the process.
func (p *process) terminate() {
	p.t.Helper()
	p.server.Signal(syscall.SIGTERM)
}

// ends waits until the process has exited with code 0.
func (p *process) ends() {
	p.t.Helper()
	if code := p.server.Exit(); code != 0 {
		p.t.Fatalf("exit code %d after SIGTERM", code)
	}
}

// do sends a request as namespace team-a and returns status and body.
func (p *process) do(method, target, body string) (int, string) {
	p.t.Helper()
	status, text, err := p.exchange(method, target, body)
	if err != nil {
		p.t.Fatal(err)
	}
	return status, text
}

// exchange is do for goroutines other than the test's own.
func (p *process) exchange(method, target, body string) (int, string, error) {
	request, err := http.NewRequestWithContext(p.t.Context(), method, p.url+"/v1/objects/"+target, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err // the error names method and URL
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, "", fmt.Errorf("%s %s: %w", method, target, err)
	}
	return response.StatusCode, string(text), nil
}

// put stores an object, which must succeed.
func (p *process) put(target, body string) {
	p.t.Helper()
	if status, text := p.do(http.MethodPut, target, body); status != http.StatusCreated {
		p.t.Fatalf("PUT %s: %d %s", target, status, text)
	}
}

// metric sums a metric of the object cache over its labels. It must exist.
func (p *process) metric(name string) float64 {
	p.t.Helper()
	if !strings.Contains(p.scrape(), "\ndatacache_objectcache_"+name) {
		p.t.Fatalf("no metric %s", name)
	}
	return p.series("datacache_objectcache_" + name)
}

// scrape returns the metrics as text.
func (p *process) scrape() string {
	p.t.Helper()
	_, text, err := proctest.Request(p.t.Context(), http.DefaultClient, http.MethodGet, p.watched+"/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

// series sums a metric over its labels; 0 if it has no values.
func (p *process) series(name string) (total float64) {
	p.t.Helper()
	for line := range strings.Lines(p.scrape()) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if base, _, _ := strings.Cut(series, "{"); base != name {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			p.t.Fatal(err)
		}
		total += n
	}
	return total
}

// metricSum sums a metric over its labels; found is false if there is none, as of one with labels that nothing was counted by.
func (p *process) metricSum(name string) (total float64, found bool) {
	p.t.Helper()
	return p.series(name), strings.Contains(p.scrape(), "\n"+name)
}

// output collects the output of a client.
type output = proctest.Output

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// need returns the path of a program that a test runs. If CI is set it must exist.
func need(t *testing.T, program, from string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not there: %s", program, from)
	}
	t.Skipf("%s is not there: %s", program, from)
	return ""
}
