// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// TestThousandOnOneKey opens a thousand connections at once. Half of them PUT the same key, and all of those are in progress when the
// other half GET it. Every response must be complete, and one object must remain.
func TestThousandOnOneKey(t *testing.T) {
	t.Parallel()
	const clients, size = 1000, 16 << 10
	wholeObject := func(response *http.Response, text string) error {
		if response.StatusCode != http.StatusOK || !isContent(text, size) {
			return fmt.Errorf("GET: %s with %d bytes, %.60q, want one of those that were put, whole", response.Status, len(text), text)
		}
		return nil
	}
	dir := filepath.Join(t.TempDir(), "objects")
	p := start(t, options{dir: dir})
	p.put("open/one", content("one", clients, size))
	puts, gets := make([]net.Conn, clients/2), make([]net.Conn, clients/2)
	for i := range puts {
		gets[i] = p.connect()
		puts[i] = p.connect()
		head := fmt.Sprintf("PUT /v1/objects/open/one HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", token, size)
		if _, err := io.WriteString(puts[i], head+content("one", i, size)[:size/2]); err != nil {
			t.Fatal(err)
		}
	}
	var group sync.WaitGroup
	exchange := func(conn net.Conn, send string, check func(*http.Response, string) error) {
		group.Go(func() {
			if err := answered(conn, send, check); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range puts {
		exchange(puts[i], content("one", i, size)[size/2:], func(response *http.Response, text string) error {
			if response.StatusCode != http.StatusCreated {
				return fmt.Errorf("PUT %d: %s %s, want 201", i, response.Status, text)
			}
			return nil
		})
		exchange(gets[i], "GET /v1/objects/open/one HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+token+"\r\n\r\n", wholeObject)
	}
	group.Wait()

	if status, text := p.do(http.MethodGet, "open/one", ""); status != http.StatusOK || !isContent(text, size) {
		t.Errorf("GET afterwards: %d, %.60q", status, text)
	}
	if left := files(t, dir); len(left) != 1 {
		t.Errorf("%d files are left of one object: %q", len(left), left)
	}
	if objects := p.metric("bucket_objects"); objects != 1 {
		t.Errorf("metric bucket_objects is %g, want 1", objects)
	}
}

// TestEvictionUnderLoad stores many times what two buckets can hold, and reads objects that may have been evicted.
func TestEvictionUnderLoad(t *testing.T) {
	t.Parallel()
	const workers, objects, size, total = 8, 100, 64 << 10, 6 << 20
	seed := seedtest.Seed(t)
	home := t.TempDir()
	dir := filepath.Join(home, "objects")
	p := start(t, options{dir: dir, buckets: write(t, filepath.Join(home, "buckets.json"), fmt.Sprintf(`{"TotalLimit": "%d", "Bucket": [
		{"Name": "open", "Public": true, "BucketQuota": "4Mi"},
		{"Name": "team", "BucketQuota": "4Mi", "AllowNamespaces": ["team-a"]}]}`, total))})
	var group sync.WaitGroup
	for worker := range workers {
		random := rand.New(rand.NewPCG(seed, uint64(worker)))
		group.Go(func() {
			for i := range objects {
				bucket := []string{"open", "team"}[i%2]
				key := func(i int) string { return fmt.Sprintf("%s/key-%d", bucket, i) }
				if status, text, err := p.exchange(http.MethodPut, key(i), content(key(i), 0, size)); err != nil || status != http.StatusCreated {
					t.Errorf("PUT %s: %d %s %v", key(i), status, text, err)
				}
				old := key(i - 2*random.IntN(i/2+1))
				status, text, err := p.exchange(http.MethodGet, old, "")
				if err != nil || status != http.StatusNotFound && (status != http.StatusOK || text != content(old, 0, size)) {
					t.Errorf("GET %s: %d, %.60q, %v, want it whole or a miss", old, status, text, err)
				}
			}
		})
	}
	group.Wait()
	if evictions := p.metric("evictions_total"); evictions == 0 {
		t.Error("nothing was evicted: the test shows little")
	}
	deadline.Eventually(t, func() error {
		counted, onDisk := p.metric("bucket_bytes"), sizes(t, files(t, dir))
		if counted != float64(onDisk) || onDisk > total {
			return fmt.Errorf("%g bytes by the metric and %d in files, want as many, and at most %d", counted, onDisk, total)
		}
		return nil
	})
}

// sizes is the total disk space of the files.
func sizes(t *testing.T, paths []string) (total int64) {
	t.Helper()
	const blockSize = 4096
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		total += (info.Size() + blockSize - 1) / blockSize * blockSize
	}
	return total
}

// connect opens a connection for objects, which is closed at the end of the test.
func (p *process) connect() net.Conn {
	p.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(p.t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	context.AfterFunc(deadline.Context(p.t), func() { _ = conn.Close() })
	return conn
}

// answered sends the rest of a request, and checks the response.
func answered(conn net.Conn, send string, check func(*http.Response, string) error) error {
	if _, err := io.WriteString(conn, send); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	return check(response, string(text))
}

// isContent reports whether a text is the complete content of key "one" in some round.
func isContent(text string, size int) bool {
	var round int
	_, err := fmt.Sscanf(text, "<one round %d>", &round)
	return err == nil && text == content("one", round, size)
}
