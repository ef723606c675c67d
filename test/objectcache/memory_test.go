// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/hubtest"
)

const (
	memoryLimit = 192 << 20
	// memorySlack is what a process may have beyond its limit: its code, and what the runtime has not returned yet.
	memorySlack = 64 << 20
)

// peak is the largest resident set of a process so far, in bytes.
func (p *process) peak() int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.server.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(line)[0], 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return kib << 10
}

// attack is one way to use memory of a server. Errors and refusals are fine.
type attack struct {
	clients int // at once
	run     func(m *memoryTest, n int)
}

// memoryTest is an object cache with a memory limit, which mirrors a hub that has large documents.
type memoryTest struct {
	t *testing.T
	p *process
}

// send sends a request and reads the answer, at the pace of a client that may be slow.
func (m *memoryTest) send(method, url, authorization, body string, slow bool) {
	request, err := http.NewRequestWithContext(m.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		m.t.Error(err)
		return
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	if slow {
		_, _ = io.CopyN(io.Discard, response.Body, 1000)
		time.Sleep(time.Second) //nolint:forbidigo // a slow client
	}
	_, _ = io.Copy(io.Discard, response.Body)
}

// raw sends bytes on a connection and keeps it open for a while.
func (m *memoryTest) raw(url, text string) {
	connection, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(3 * time.Second))
	_, _ = io.WriteString(connection, text)
	time.Sleep(time.Second) //nolint:forbidigo // a client that does not go on
}

func attacks() []attack {
	hub := func(path string) func(m *memoryTest, n int) {
		return func(m *memoryTest, n int) {
			m.send(http.MethodGet, m.p.mirror()+"/hub"+fmt.Sprintf(path, n), "", "", n%2 == 0)
		}
	}
	var fields strings.Builder
	for i := range 12000 {
		fmt.Fprintf(&fields, "%x:\r\n", i)
	}
	keys := strings.Repeat(strings.Repeat("k", 127)+"\n", 1<<16)
	return []attack{
		{4, hub("/api/models/acme/big?x=%d")},
		{4, hub("/api/models/acme/big/tree/main?cursor=%d")},
		{4, hub("/api/models/acme/big/commits/main?p=%d")},
		{8, func(m *memoryTest, n int) {
			m.send(http.MethodPost, m.p.mirror()+"/hub/api/models/acme/files/paths-info/main", "", strings.Repeat("paths=x&", 1<<17-n), false)
		}},
		{32, func(m *memoryTest, n int) {
			m.raw(m.p.mirror(), fmt.Sprintf("GET /hub/%s HTTP/1.1\r\nHost: x\r\nRange: bytes=%d-\r\n\r\n", "acme/files/resolve/main/large.bin", n<<20))
		}},
		{100, func(m *memoryTest, n int) {
			url := m.p.url
			if n%2 == 0 {
				url = m.p.mirror()
			}
			m.raw(url, "GET /v1/objects/open/x HTTP/1.1\r\nHost: x\r\n"+fields.String()[:60<<10])
		}},
		{4, func(m *memoryTest, _ int) {
			m.raw(m.p.url, fmt.Sprintf("POST /v1/objects/open?batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", token, len(keys), keys))
		}},
		{150, func(m *memoryTest, n int) {
			m.raw(m.p.url, fmt.Sprintf("PUT /v1/objects/open/%d HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000\r\n\r\n%s", n, token, strings.Repeat("x", 1<<16)))
		}},
	}
}

// TestMemoryLimit attacks object caches on 2, 16 and 64 processors in all ways at once. Their resident memory stays within the limit and
// memorySlack, and afterwards they serve.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	entry := `{"type":"file","path":"a file","size":100,"oid":"0123456789","lfs":{"oid":"0123456789","size":100},"xetHash":"0123456789abcdef"},`
	big := &hubtest.Repo{Kind: "models", ID: "acme/big", Info: `[` + strings.Repeat(entry, 10_000_000/len(entry)) + `{}]`}
	files := model("acme/files")
	files.Files["large.bin"] = hubtest.File{Text: content("large", 0, 64<<20), LFS: true}
	hub := hubtest.Start(t, big, files)
	for _, processors := range []string{"2", "16", "64"} {
		t.Run(processors, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			config := write(t, filepath.Join(home, "mirrors.yaml"), fmt.Sprintf("hub: {upstream: %q, bucket: models}\n", hub.URL))
			buckets := write(t, filepath.Join(home, "buckets.json"), mirrorBuckets)
			args := []string{"--mirrors", config, "--mirror-listen", "127.0.0.1:0", "--memory-limit", strconv.Itoa(memoryLimit)}
			m := &memoryTest{t: t, p: start(t, options{buckets: buckets, args: args, wrap: []string{"env", "GOMAXPROCS=" + processors}})}
			began := time.Now()
			var group sync.WaitGroup
			for _, a := range attacks() {
				for n := range a.clients {
					group.Go(func() { a.run(m, n) })
				}
			}
			group.Wait()
			t.Logf("%.1f s, at most %d MiB", time.Since(began).Seconds(), m.p.peak()>>20)
			most := int64(memoryLimit + memorySlack)
			if raceEnabled {
				most *= 3 // the race detector keeps a shadow of the heap
			}
			if peak := m.p.peak(); peak > most {
				t.Errorf("%d MiB resident, want at most %d", peak>>20, most>>20)
			}
			deadline.Eventually(t, func() error { // the memory of a connection is released shortly after it was closed
				status, text, err := m.p.exchange(http.MethodPut, "open/after", "x")
				if err == nil && status != http.StatusCreated {
					err = fmt.Errorf("PUT afterwards: %d %s", status, text)
				}
				return err
			})
			if status, body := m.p.do(http.MethodGet, "open/after", ""); status != http.StatusOK || body != "x" {
				t.Errorf("afterwards: %d %q", status, body)
			}
			if got := (&mirrors{t: t, nodes: []*process{m.p}}).ask(0, http.MethodGet, "", at(files, "model.safetensors")); got.body != files.Files["model.safetensors"].Text {
				t.Errorf("a file afterwards: %d, %d bytes, %v", got.status, len(got.body), got.err)
			}
		})
	}
}
