// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

func TestCurl(t *testing.T) {
	t.Parallel()
	curl := need(t, "curl", "install curl")
	p := start(t, options{})
	dir := t.TempDir()
	tokenFile := write(t, filepath.Join(dir, "token"), token+"\n")
	sent := write(t, filepath.Join(dir, "sent"), content("curl", 0, 3<<20)) // large enough that curl waits for 100 Continue
	got := filepath.Join(dir, "got")
	run := func(arguments string) string {
		command := fmt.Sprintf(`%s -sS -w '%%{http_code}' -H "Authorization: Bearer $(cat %s)" %s`, curl, tokenFile, arguments)
		text, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, text)
		}
		return string(text)
	}
	url := p.url + "/v1/objects/team/apple"
	if code := run(fmt.Sprintf("-X PUT %s --data-binary @%s", url, sent)); code != "201" {
		t.Errorf("PUT: %s, want 201", code)
	}
	if code := run(fmt.Sprintf("-T %s %s", sent, url)); code != "201" {
		t.Errorf("PUT with -T: %s, want 201", code)
	}
	if code := run(fmt.Sprintf("-o %s %s", got, url)); code != "200" {
		t.Errorf("GET: %s, want 200", code)
	}
	want, err := os.ReadFile(sent)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(got); err != nil || string(text) != string(want) {
		t.Errorf("got %d bytes, %v, want the %d that were put", len(text), err, len(want))
	}
	if code := run(fmt.Sprintf("-r 5-9 %s", url)); code != string(want[5:10])+"206" {
		t.Errorf("GET of a range: %s, want %s206", code, want[5:10])
	}
	if code := run("-o /dev/null " + p.url + "/v1/objects/team/pear"); code != "404" {
		t.Errorf("GET of what is not there: %s, want 404", code)
	}
	big := write(t, filepath.Join(dir, "big"), "")
	if err := os.Truncate(big, 600<<20); err != nil {
		t.Fatal(err)
	}
	if code := run(fmt.Sprintf("-o /dev/null -T %s %s", big, url)); code != "413" {
		t.Errorf("PUT of more than the bucket takes: %s, want 413", code)
	}
}

// remoteHits matches the counters of the remote storage in the output of "ccache --print-stats".
var remoteHits = regexp.MustCompile(`(?m)^remote_storage_(read_hit|write)\t(\d+)$`)

func TestCcache(t *testing.T) {
	t.Parallel()
	ccache := need(t, "ccache", "install ccache")
	need(t, "gcc", "install gcc")
	p := start(t, options{})
	source := t.TempDir()
	const units = 5
	for i := range units {
		write(t, filepath.Join(source, fmt.Sprintf("unit%d.c", i)), fmt.Sprintf("int answer%d(void) { return %d; }\n", i, i))
	}
	build := func(tokenGiven string) map[string]int { // with an empty local cache
		local := t.TempDir()
		env := []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + local, "CCACHE_DIR=" + local,
			"CCACHE_REMOTE_STORAGE=" + p.url + "/v1/objects/team/ccache|bearer-token=" + tokenGiven + "|operation-timeout=60000|connect-timeout=60000",
		}
		run := func(args ...string) string {
			cmd := exec.CommandContext(t.Context(), ccache, args...)
			cmd.Env, cmd.Dir = env, source
			text, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("ccache %v: %v: %s", args, err, text)
			}
			return string(text)
		}
		for i := range units {
			run("gcc", "-c", fmt.Sprintf("unit%d.c", i), "-o", filepath.Join(local, fmt.Sprintf("unit%d.o", i)))
		}
		stats := map[string]int{}
		for _, m := range remoteHits.FindAllStringSubmatch(run("--print-stats"), -1) {
			n, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			stats[m[1]] = n
		}
		return stats
	}
	if stats := build(token); stats["read_hit"] != 0 || stats["write"] == 0 {
		t.Errorf("a cold build: %v, want writes and no hit", stats)
	}
	if stats := build(token); stats["read_hit"] < units || stats["write"] != 0 {
		t.Errorf("a second build: %v, want at least %d hits and no write", stats, units)
	}
	if stats := build(otherToken); stats["read_hit"] != 0 || stats["write"] != 0 {
		t.Errorf("a build by who may not: %v, want it to go on alone", stats)
	}
}

// reader is a running pfio_reader.py.
type reader struct {
	t    *testing.T
	in   io.Writer
	out  *bufio.Scanner
	says *output
}

func newReader(t *testing.T, origin, cache, tokenFile string, env ...string) *reader {
	t.Helper()
	python := os.Getenv("DATACACHE_CLIENTS_PYTHON")
	if python == "" {
		t.Skip("DATACACHE_CLIENTS_PYTHON names no Python that has pfio: run by make, which makes one of hack/python/clients.txt")
	}
	r := &reader{t: t, says: &output{}}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), python, "pfio_reader.py", origin, cache)
	cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "PFIO_HTTP_BEARER_TOKEN_PATH="+tokenFile)
	cmd.Stderr = r.says
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.in, r.out = in, bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("pfio said:\n%s", r.says)
		}
	})
	return r
}

// read reads a file with pfio.
func (r *reader) read(name string) string {
	r.t.Helper()
	line, err := json.Marshal(name)
	if err != nil {
		r.t.Fatal(err)
	}
	fmt.Fprintf(r.in, "%s\n", line)
	if !r.out.Scan() {
		r.t.Fatalf("pfio ended at %q: %s", name, r.says)
	}
	var text string
	if err := json.Unmarshal(r.out.Bytes(), &text); err != nil {
		r.t.Fatal(err)
	}
	return text
}

func TestPfio(t *testing.T) {
	t.Parallel()
	p := start(t, options{})
	folder := t.TempDir()
	tokenFile := write(t, filepath.Join(folder, "token"), token)
	r := newReader(t, "file://"+folder, p.url+"/v1/objects/team/data", tokenFile)

	names := []string{"plain", "deep/down/in/it", "a..b", "..c", "empty", "a+b&c=d?e#f", "per%20cent"}
	for _, name := range names {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		text := "first of " + name
		if name == "empty" {
			text = ""
		}
		write(t, path, text)
		if got := r.read(name); got != text {
			t.Errorf("%s, a miss: %q, want the origin's %q", name, got, text)
		}
		write(t, path, "changed behind the cache's back")
		if got := r.read(name); got != text {
			t.Errorf("%s, a hit: %q, want what was cached, %q", name, got, text)
		}
	}
	if hits := p.metric("hits_total"); hits != float64(len(names)) {
		t.Errorf("%g hits for %d files", hits, len(names))
	}

	write(t, filepath.Join(folder, "with space"), "origin") // the request never reaches the server, and pfio falls back
	if got := r.read("with space"); got != "origin" {
		t.Errorf("a name with a space: %q, want the origin's", got)
	}

	write(t, tokenFile, "expired")
	deadline.Eventually(t, func() error { // pfio reads the token file again after a second
		if got := r.read("plain"); got != "changed behind the cache's back" {
			return fmt.Errorf("with a bad token: %q, want the origin's", got)
		}
		return nil
	})
	// pfio may read the token between a rejected GET and the PUT of what it then read, so the content is cached.
	plain := write(t, filepath.Join(folder, "plain"), "first of plain")
	hits := p.metric("hits_total")
	write(t, tokenFile, token)
	deadline.Eventually(t, func() error {
		if got := r.read("plain"); got != "first of plain" || p.metric("hits_total") == hits {
			return fmt.Errorf("with a good token again: %q, and %g hits as before, want one of what is cached", got, hits)
		}
		return nil
	})
	write(t, plain, "changed behind the cache's back")

	p.kill()
	if got := r.read("plain"); got != "changed behind the cache's back" {
		t.Errorf("with the server down: %q, want the origin's", got)
	}
}

// TestPfioOfS3 reads objects from an S3 bucket. The second reader must get them without reading from the bucket.
func TestPfioOfS3(t *testing.T) {
	t.Parallel()
	p, origin := start(t, options{}), s3test.Start(t)
	tokenFile := write(t, filepath.Join(t.TempDir(), "token"), token)
	bodies := map[string]string{"plain": "body", "deep/down/in/it": content("deep", 0, 30<<10), "empty": "", "a+b&c=d": "odd"}
	for name, body := range bodies {
		origin.Put("bucket", "data/"+name, []byte(body))
	}
	for _, cached := range []bool{false, true} {
		r := newReader(t, "s3://bucket/data", p.url+"/v1/objects/team/pfio", tokenFile,
			append(origin.Env(), "S3_ENDPOINT="+origin.URL())...)
		origin.Forget()
		for name, body := range bodies {
			if got := r.read(name); got != body {
				t.Errorf("%s: %d bytes, %.40q, want %d", name, len(got), got, len(body))
			}
		}
		gets := 0
		for _, request := range origin.Requests() {
			if request.Method == http.MethodGet && strings.Contains(request.Key, "data/") {
				gets++
			}
		}
		if cached != (gets == 0) {
			t.Errorf("%d reads of objects from the bucket, with all of them cached: %t", gets, cached)
		}
	}
	if hits := p.metric("hits_total"); hits != float64(len(bodies)) {
		t.Errorf("%g hits, want %d", hits, len(bodies))
	}
}

// TestStopWaitsForRequests stops the server in the middle of a PUT.
func TestStopWaitsForRequests(t *testing.T) {
	t.Parallel()
	p := start(t, options{args: []string{"--grace", "24h"}})
	body, feed := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, p.url+"/v1/objects/team/late", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	status := make(chan string, 1)
	go func() {
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			status <- err.Error()
			return
		}
		response.Body.Close()
		status <- response.Status
	}()
	if _, err := io.WriteString(feed, "first half, "); err != nil {
		t.Fatal(err)
	}
	deadline.Eventually(t, func() error {
		if p.metric("bucket_bytes") == 0 {
			return fmt.Errorf("the PUT has not begun")
		}
		return nil
	})
	p.terminate()
	deadline.Eventually(t, func() error { // it accepts no new connections
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("a new connection: %w, want a refused one", cmp.Or(err, errors.New("it was accepted")))
		}
		return nil
	})
	if _, err := io.WriteString(feed, "second half"); err != nil {
		t.Error(err)
	}
	feed.Close()
	if got := <-status; got != "201 Created" {
		t.Errorf("the PUT ended with %s, want 201", got)
	}
	p.ends()
}
