// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// The tests of this file ask misbehaving upstreams with the clients that ask catalogs, object stores, hubs and registries.

const (
	// marker is a part of every credential of these tests.
	marker = "sekret"
	// stallTime is the clients' --stall-timeout where an upstream is slow. Elsewhere it is the time limit of waits, which a busy machine does not reach.
	stallTime = 300 * time.Millisecond
	// mostRead bounds what a client reads of the answers of one misbehaving upstream: two attempts of 64 MiB, and what is in flight.
	mostRead = 2 * (64<<20 + 16<<20)
)

// client is a way to ask an upstream. It sends credentials with marker.
type client struct {
	name string
	ask  asking
	traits
}

// asking asks the upstream at a URL, with a --stall-timeout.
type asking func(ctx context.Context, t *testing.T, url string, stall time.Duration) error

// traits are what a client may do that others don't.
type traits struct {
	follows bool // follows redirects to other hosts, without credentials
	opaque  bool // any bytes are an answer, which is checked later
	mirror  bool // passes answers on as they are; who calls it sets a time limit
}

func clients() []client {
	return []client{
		{name: "catalog with a token", ask: askCatalog(map[string]string{"token": marker + "-token"})},
		{name: "catalog with a credential", ask: askCatalog(map[string]string{"credential": "id:" + marker})},
		{name: "S3", ask: askStore("s3://box/key", s3At), traits: traits{opaque: true}},
		{name: "list of S3", ask: listStore("s3://box/folder", s3At)},
		{name: "GCS", ask: askStore("gs://box/key", gcsAt), traits: traits{opaque: true}},
		{name: "list of GCS", ask: listStore("gs://box/folder", gcsAt)},
		{name: "token server of GCS", ask: askStore("gs://box/key", gcsTokensAt)},
		{name: "Azure", ask: askStore("abfss://box@acct.dfs.core.windows.net/key", azureAt), traits: traits{opaque: true}},
		{name: "list of Azure", ask: listStore("abfss://box@acct.dfs.core.windows.net/folder", azureAt)},
		{name: "hub", ask: askStore("hf://owner/name/key", hubAt), traits: traits{follows: true, opaque: true}},
		{name: "list of a hub", ask: listStore("hf://owner/name/folder", hubAt), traits: traits{follows: true}},
		{name: "mirrored document", ask: askMirror(func(c *upstream.Client, r *http.Request) (io.ReadCloser, error) {
			d, err := c.Document(r)
			return d.Body, err
		}), traits: traits{mirror: true}},
		{name: "mirrored range", ask: askMirror(func(c *upstream.Client, r *http.Request) (io.ReadCloser, error) { return c.Range(r, 3, 3, 10) }), traits: traits{mirror: true, follows: true}},
	}
}

func askCatalog(properties map[string]string) asking {
	return func(ctx context.Context, _ *testing.T, url string, stall time.Duration) error {
		_, err := iceberg.Open(ctx, shortStore(objstore.Config{}, stall), iceberg.Location{CatalogURI: url, Namespace: "db", Table: "t", Properties: properties}, iceberg.Selection{})
		return err
	}
}

// shortStore returns a store that soon gives up.
func shortStore(cfg objstore.Config, stall time.Duration) *objstore.Store {
	cfg.StallTimeout = stall
	cfg.Retry = objstore.Retry{Attempts: 2, FirstPause: time.Millisecond}
	return objstore.New(cfg)
}

func askStore(uri string, at func(url string) objstore.Config) asking {
	return func(ctx context.Context, _ *testing.T, url string, stall time.Duration) error {
		_, err := shortStore(at(url), stall).ReadAtMost(ctx, uri, 1<<20)
		return err
	}
}

func listStore(uri string, at func(url string) objstore.Config) asking {
	return func(ctx context.Context, _ *testing.T, url string, stall time.Duration) error {
		for _, err := range shortStore(at(url), stall).List(ctx, uri) {
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func s3At(url string) objstore.Config {
	return objstore.Config{S3: objstore.S3{Endpoint: url, Region: "r", AccessKeyID: marker, SecretAccessKey: marker + "-key", SessionToken: marker + "-session"}}
}

func gcsAt(url string) objstore.Config {
	return objstore.Config{GCS: objstore.GCS{Endpoint: url, Token: marker + "-token"}}
}

func azureAt(url string) objstore.Config {
	return objstore.Config{Azure: objstore.Azure{Endpoint: url, SASTokens: map[string]string{"": "sig=" + marker}}}
}

func hubAt(url string) objstore.Config {
	return objstore.Config{Hub: objstore.Hub{Endpoint: url, Token: marker + "-token"}}
}

// privateKey is of the service account in gcsTokensAt.
var privateKey = sync.OnceValue(func() string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
})

func gcsTokensAt(url string) objstore.Config {
	key, _ := json.Marshal(map[string]string{"type": "service_account", "client_email": "a@b", "private_key": privateKey(), "token_uri": url + "/token"})
	return objstore.Config{GCS: objstore.GCS{Endpoint: url, CredentialsJSON: string(key)}}
}

func askMirror(open func(*upstream.Client, *http.Request) (io.ReadCloser, error)) asking {
	return func(ctx context.Context, t *testing.T, url string, _ time.Duration) error {
		r, err := upstream.NewRequest(ctx, http.MethodGet, url+"/v2/x", "Bearer "+marker, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := open(upstream.New(), r)
		if err != nil {
			return fmt.Errorf("%s: %w", url, err) // its callers name the upstream
		}
		defer body.Close()
		if _, err := io.Copy(io.Discard, io.LimitReader(body, 1<<20)); err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
		return nil
	}
}

// behavior is how an upstream answers a request. Its writes end with the request.
type behavior struct {
	name string
	slow bool // no answer comes to its end
	do   func(w http.ResponseWriter, r *http.Request, other string)
}

func behaviors() []behavior {
	all := []behavior{
		{"redirects in a circle", false, func(w http.ResponseWriter, r *http.Request, _ string) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}},
		{"is silent", true, func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() }},
		{"drips", true, func(w http.ResponseWriter, r *http.Request, _ string) { drip(w, r, 0) }},
		{"drips after a good beginning", true, func(w http.ResponseWriter, r *http.Request, _ string) {
			_, _ = io.WriteString(w, `{"defaults":{`)
			drip(w, r, 0)
		}},
		{"drips an error", true, func(w http.ResponseWriter, r *http.Request, _ string) {
			w.WriteHeader(http.StatusBadRequest)
			drip(w, r, 0)
		}},
		{"drips what it announced", true, func(w http.ResponseWriter, r *http.Request, _ string) { drip(w, r, 1<<20) }},
		{"never ends", false, func(w http.ResponseWriter, _ *http.Request, _ string) { endless(w, "x") }},
		{"never ends a string", false, func(w http.ResponseWriter, _ *http.Request, _ string) {
			_, _ = io.WriteString(w, `{"sha":"`)
			endless(w, "x")
		}},
		{"never ends an XML list", false, func(w http.ResponseWriter, _ *http.Request, _ string) {
			_, _ = io.WriteString(w, `<?xml version="1.0"?><ListBucketResult>`)
			endless(w, `<Contents><Key>folder/x</Key><Size>1</Size></Contents>`)
		}},
		{"never ends JSON lists", false, func(w http.ResponseWriter, _ *http.Request, _ string) { endless(w, "[") }},
		{"never ends an error", false, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.WriteHeader(http.StatusForbidden)
			endless(w, "<Error>")
		}},
		{"never ends its header", false, func(w http.ResponseWriter, _ *http.Request, _ string) { endlessHeader(w) }},
		{"announces more than it sends", false, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "{}")
		}},
		{"sends a web page", false, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html><p>Sign in</html>")
		}},
		{"lies about its range", false, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Range", "bytes 0-9/9223372036854775807")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, "0123456789")
		}},
		{"repeats a page of a list", false, func(w http.ResponseWriter, r *http.Request, _ string) { samePage(w, r) }},
		{"lies about its size", false, func(w http.ResponseWriter, r *http.Request, _ string) { ranged(w, r, 1<<62, `"tag"`) }},
		{"has another ETag each time", false, func(w http.ResponseWriter, r *http.Request, _ string) {
			ranged(w, r, 300<<10, fmt.Sprintf(`"%d"`, mrand.Uint64()))
		}},
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		all = append(all, behavior{fmt.Sprintf("redirects to another host by %d", status), false, func(w http.ResponseWriter, r *http.Request, other string) {
			http.Redirect(w, r, other+r.URL.Path, status)
		}})
	}
	return all
}

// ranged answers with the range that was asked for, of zeros, of an object that is said to have size bytes and a tag.
func ranged(w http.ResponseWriter, r *http.Request, size int64, tag string) {
	first, last := int64(0), size-1
	text := strings.TrimPrefix(cmp.Or(r.Header.Get("Range"), r.Header.Get("X-Ms-Range")), "bytes=")
	if n, ok := strings.CutPrefix(text, "-"); ok {
		length, _ := strconv.ParseInt(n, 10, 64)
		first = max(0, size-length)
	} else if _, err := fmt.Sscanf(text, "%d-%d", &first, &last); err != nil {
		w.Header().Set("Content-Length", fmt.Sprint(size))
	}
	w.Header().Set("ETag", tag)
	if text != "" {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, size))
		w.Header().Set("Content-Length", fmt.Sprint(last-first+1))
		w.WriteHeader(http.StatusPartialContent)
	}
	_, _ = io.CopyN(w, zeros{}, last-first+1) // a write fails once the client has left
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// samePage answers with a page of a list that names itself as the next one, in the forms of S3 and GCS, Azure and hubs.
func samePage(w http.ResponseWriter, r *http.Request) {
	text := `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>n</NextContinuationToken></ListBucketResult>`
	switch {
	case r.URL.Query().Get("comp") == "list":
		text = `<EnumerationResults><Blobs></Blobs><NextMarker>n</NextMarker></EnumerationResults>`
	case strings.HasPrefix(r.URL.Path, "/api/datasets/"):
		w.Header().Set("Link", `</x?cursor=n>; rel="next"`)
		text = "[]"
	}
	_, _ = io.WriteString(w, text)
}

// endless repeats a text until the client leaves.
func endless(w io.Writer, text string) {
	block := bytes.Repeat([]byte(text), 1+(256<<10)/len(text))
	for sent := 0; sent < 4*mostRead; sent += len(block) {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

func endlessHeader(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n"); err == nil {
		endless(conn, "X-Field: value\r\n")
	}
}

// misbehaving is an upstream, and another host to which it may redirect.
type misbehaving struct {
	*httptest.Server
	other *httptest.Server
	sent  atomic.Int64 // bytes of the bodies that it has sent

	mu     sync.Mutex
	visits []string // requests to the other host
}

// misbehave serves until the test ends; next says how each request is answered.
func misbehave(t *testing.T, next func() behavior) *misbehaving {
	t.Helper()
	m := &misbehaving{}
	m.other = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, _ := httputil.DumpRequest(r, true)
		m.mu.Lock()
		m.visits = append(m.visits, string(request))
		m.mu.Unlock()
		http.Error(w, "nothing here", http.StatusNotFound)
	}))
	t.Cleanup(m.other.Close)
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the request's context ends with its connection only after that
		next().do(counting{w, &m.sent, r.Method == http.MethodHead}, r, m.other.URL)
	}))
	t.Cleanup(func() {
		m.CloseClientConnections()
		m.Close()
	})
	return m
}

// counting counts the bytes of an answer.
type counting struct {
	http.ResponseWriter
	sent   *atomic.Int64
	isHead bool // there is no body
}

func (c counting) Write(p []byte) (int, error) {
	if c.isHead {
		return 0, http.ErrBodyNotAllowed
	}
	n, err := c.ResponseWriter.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

func (c counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// survivesIt asks a misbehaving upstream and checks what that cost. It returns the error of the call.
func (c client) survivesIt(t *testing.T, m *misbehaving, stall time.Duration) error {
	t.Helper()
	within := deadline.Limit()
	if c.mirror {
		within = 2 * stall
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.ask(ctx, t, m.URL, stall) }()
	err := deadline.Receive(t, ended, "the call to end, even after its context")
	if ctx.Err() != nil && !c.mirror {
		t.Errorf("it did not end: %v", err)
	}
	if sent := m.sent.Load(); sent > mostRead {
		t.Errorf("%d MB of the answers were read, want at most %d", sent>>20, mostRead>>20)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, visit := range m.visits {
		if strings.Contains(visit, marker) || strings.Contains(visit, "Authorization:") || strings.Contains(visit, "assertion=") {
			t.Errorf("another host got credentials:\n%s", visit)
		}
		if !c.follows {
			t.Errorf("another host was asked:\n%s", visit)
		}
	}
	return err
}

// TestMisbehavingUpstreams has each client ask upstreams that misbehave in each way: no other host gets credentials, the call ends in time with
// an error of one line that names the upstream, and no more than a bounded part of an answer is read.
func TestMisbehavingUpstreams(t *testing.T) {
	for _, c := range clients() {
		for _, b := range behaviors() {
			t.Run(c.name+" "+b.name, func(t *testing.T) {
				t.Parallel()
				m := misbehave(t, func() behavior { return b })
				stall := deadline.Limit()
				if b.slow {
					stall = stallTime
				}
				err := c.survivesIt(t, m, stall)
				t.Log(err)
				if err == nil && (c.mirror || c.opaque && (b.name == "sends a web page" || b.name == "repeats a page of a list")) {
					return
				}
				if err == nil {
					t.Fatal("there was no error")
				}
				if text := err.Error(); strings.Contains(text, "\n") || strings.Contains(text, marker) || !strings.Contains(text, strings.TrimPrefix(m.URL, "http://")) && !strings.Contains(text, "://") {
					t.Errorf("the error %q should be one line that names the upstream and no credentials", text)
				}
				if !strings.HasPrefix(b.name, "redirects to another") || !strings.HasPrefix(c.name, "catalog") {
					return
				}
				for _, host := range []string{m.URL, m.other.URL} {
					if !strings.Contains(err.Error(), host) {
						t.Errorf("the error %q does not name %s", err, host)
					}
				}
			})
		}
	}
}

// TestUpstreamsThatMisbehaveAtRandom draws a behavior for each request. UPSTREAM_CASES sets the number of cases.
func TestUpstreamsThatMisbehaveAtRandom(t *testing.T) {
	cases, seed := number(t, "UPSTREAM_CASES", 20), seedtest.Seed(t)
	clients, behaviors := clients(), behaviors()
	for i := range cases {
		random := mrand.New(mrand.NewPCG(seed, i))
		c := clients[random.IntN(len(clients))]
		t.Run(fmt.Sprintf("%d %s", i, c.name), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			m := misbehave(t, func() behavior {
				mu.Lock()
				defer mu.Unlock()
				return behaviors[random.IntN(len(behaviors))]
			})
			_ = c.survivesIt(t, m, stallTime) // some mixtures are answers
		})
	}
}
