// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/serve"
	"github.com/kubeflow/datacache/objectcache/store"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// folder returns an empty folder that is removed at the end of the test, when the last blocks that were requested ahead are there.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "content-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		deadline.Eventually(t, func() error { return os.RemoveAll(dir) })
	})
	return dir
}

// newCache returns a Cache with blocks of 100 bytes that owns every key, and a bucket "models" with a quota.
func newCache(t *testing.T, quota int64) *Cache {
	t.Helper()
	objects, err := store.Open(store.Config{Dir: folder(t), Limits: store.Limits{Total: quota, Quotas: map[string]int64{"models": quota}}})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	current := func() buckets.Config {
		return buckets.Config{Buckets: map[string]buckets.Bucket{"models": {Name: "models", Mirror: true}}}
	}
	members := router.New("self")
	server := serve.New(serve.Config{
		Store: objects, Buckets: current, BucketsRejected: func() bool { return false }, Router: members, Log: log,
		Reviewer: identity.Static(func() identity.Tokens { return identity.Tokens{} }),
	})
	c := New(Config{Store: objects, Buckets: current, Router: members, Peers: server.Peers, Metrics: NewMetrics(), Log: log})
	c.unit = 100
	return c
}

// origin is an upstream server with one blob.
type origin struct {
	text  string
	reads atomic.Int64
	wrong atomic.Int64 // offset of a byte that is sent wrong, plus 1; 0: none
	gate  chan struct{}
}

func (o *origin) blob() Blob {
	sum := sha256.Sum256([]byte(o.text))
	digest, _ := SHA256(hex.EncodeToString(sum[:]))
	return Blob{Kind: "test", Bucket: "models", Digest: digest, Size: int64(len(o.text)), Read: func(_ context.Context, first, length int64) (io.ReadCloser, error) {
		o.reads.Add(1)
		if o.gate != nil {
			<-o.gate
		}
		part := []byte(o.text[first : first+length])
		if at := o.wrong.Load() - 1; at >= first && at < first+length {
			part[at-first] ^= 1
		}
		return io.NopCloser(strings.NewReader(string(part))), nil
	}}
}

func newOrigin(size int) *origin {
	var text strings.Builder
	for i := 0; text.Len() < size; i++ {
		fmt.Fprintf(&text, "%d,", i)
	}
	return &origin{text: text.String()[:size]}
}

// start sends a request for a blob and returns the answer.
func start(t *testing.T, c *Cache, b Blob, method, asked string) (*httptest.ResponseRecorder, error) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/", nil)
	if asked != "" {
		r.Header.Set("Range", asked)
	}
	w := httptest.NewRecorder()
	return w, c.Serve(w, r, b, &Request{Method: method})
}

func TestServeRanges(t *testing.T) {
	t.Parallel()
	c, o := newCache(t, 1<<20), newOrigin(1050)
	for _, test := range []struct {
		method, asked string
		status        int
		from, to      int
	}{
		{"GET", "bytes=0-0", 206, 0, 1}, {"GET", "bytes=99-100", 206, 99, 101}, {"GET", "bytes=150-449", 206, 150, 450}, {"GET", "bytes=1000-", 206, 1000, 1050},
		{"GET", "bytes=-60", 206, 990, 1050}, {"GET", "", 200, 0, 1050}, {"GET", "bytes=0-", 206, 0, 1050}, {"HEAD", "", 200, 0, 0}, {"HEAD", "bytes=5-9", 200, 0, 0},
		{"GET", "bytes=1-2,4-5", 200, 0, 1050},
	} {
		w, err := start(t, c, o.blob(), test.method, test.asked)
		if err != nil || w.Code != test.status || w.Body.String() != o.text[test.from:test.to] {
			t.Errorf("%s %s: %d, %v, %q, want %d and bytes %d to %d", test.method, test.asked, w.Code, err, w.Body, test.status, test.from, test.to)
		}
	}
	if w, err := start(t, c, o.blob(), "GET", "bytes=1050-"); err != nil || w.Code != 416 || w.Header().Get("Content-Range") != "bytes */1050" {
		t.Errorf("beyond the end: %d %v, %v", w.Code, w.Header(), err)
	}
	if reads := o.reads.Load(); reads != 11 {
		t.Errorf("%d reads of 11 blocks", reads)
	}
	if w, err := start(t, c, newOrigin(0).blob(), "GET", ""); err != nil || w.Code != 200 || w.Body.Len() > 0 {
		t.Errorf("an empty blob: %d, %v", w.Code, err)
	}
}

func TestBlocksAreReadOnce(t *testing.T) {
	t.Parallel()
	c, o := newCache(t, 1<<20), newOrigin(1000)
	o.gate = make(chan struct{})
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			if w, err := start(t, c, o.blob(), "GET", ""); err != nil || w.Body.String() != o.text {
				t.Errorf("%d, %v, %d bytes", w.Code, err, w.Body.Len())
			}
		})
	}
	close(o.gate)
	group.Wait()
	if reads := o.reads.Load(); reads != 10 {
		t.Errorf("%d reads of 10 blocks", reads)
	}
}

// TestWithoutRoom serves a blob that is larger than its bucket.
func TestWithoutRoom(t *testing.T) {
	t.Parallel()
	c, o := newCache(t, 1), newOrigin(1000)
	if w, err := start(t, c, o.blob(), "GET", ""); err != nil || w.Body.String() != o.text {
		t.Errorf("%d, %v, %d bytes", w.Code, err, w.Body.Len())
	}
}

func TestPoisonIsCutAndRemoved(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1000, 950, 80} {
		c, o := newCache(t, 1<<20), newOrigin(size)
		o.wrong.Store(50)
		w, err := start(t, c, o.blob(), "GET", "")
		want := ErrCut
		if size <= 100 { // a single block is verified before anything is sent
			want = ErrPoisoned
		}
		if !errors.Is(err, want) || w.Body.Len() >= size {
			t.Errorf("%d bytes: %v after %d bytes, want %v", size, err, w.Body.Len(), want)
		}
		o.wrong.Store(0)
		if w, err := start(t, c, o.blob(), "GET", ""); err != nil || w.Body.String() != o.text {
			t.Errorf("%d bytes afterwards: %d, %v, %d bytes", size, w.Code, err, w.Body.Len())
		}
	}
}

// TestBlocksOfVerifiedBlobsAreVerified checks that a block that is fetched again, for a range, is verified by itself.
func TestBlocksOfVerifiedBlobsAreVerified(t *testing.T) {
	t.Parallel()
	c, o := newCache(t, 1<<20), newOrigin(1000)
	b := o.blob()
	if _, err := start(t, c, b, "GET", ""); err != nil {
		t.Fatal(err)
	}
	for _, scope := range []string{b.own(), verified} {
		if err := c.cfg.Store.Delete("models", b.key(3, scope)); err != nil {
			t.Fatal(err)
		}
	}
	o.wrong.Store(350)
	if w, err := start(t, c, b, "GET", "bytes=310-320"); !errors.Is(err, ErrPoisoned) {
		t.Errorf("%d %q, %v, want %v", w.Code, w.Body, err, ErrPoisoned)
	}
	o.wrong.Store(0)
	if w, err := start(t, c, b, "GET", "bytes=310-320"); err != nil || w.Body.String() != o.text[310:321] {
		t.Errorf("afterwards: %d %q, %v", w.Code, w.Body, err)
	}
}

func TestGitBlobDigest(t *testing.T) {
	t.Parallel()
	d, ok := GitBlob("ce013625030ba8dba906f756967f9e9ca394464a") // of "hello\n", by git hash-object
	h := d.newHash(6)
	_, _ = io.WriteString(h, "hello\n")
	if !ok || !d.matches(h) {
		t.Error("not the name that Git gives")
	}
	for _, bad := range []string{"", "ce01", strings.Repeat("G", 40), strings.Repeat("A", 40), "../" + strings.Repeat("a", 37)} {
		if _, ok := GitBlob(bad); ok {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	refused := func(status int) error {
		return &upstream.Refused{Answer: upstream.Document{Status: status, Fetched: time.Now()}}
	}
	none := refused(http.StatusNotFound)
	for name, test := range map[string]struct {
		maxAge, stale time.Duration
		keeps         bool
		answers       []error // of upstream; nil is a document
		want          []error
		asked         int32
	}{
		"for ever":                  {maxAge: Forever, answers: []error{nil}, want: []error{nil, nil, nil}, asked: 1},
		"aged":                      {answers: []error{nil, nil}, want: []error{nil, nil}, asked: 2},
		"stale":                     {stale: time.Hour, answers: []error{nil, errors.New("down"), refused(503), refused(429)}, want: []error{nil, nil, nil, nil}, asked: 4},
		"not stale":                 {answers: []error{nil, refused(503)}, want: []error{nil, refused(503)}, asked: 2},
		"refused":                   {stale: time.Hour, answers: []error{nil, refused(403), refused(503)}, want: []error{nil, refused(403), refused(503)}, asked: 3},
		"a refusal that is kept":    {maxAge: Forever, keeps: true, answers: []error{none}, want: []error{none, none}, asked: 1},
		"a refusal that is not":     {maxAge: Forever, answers: []error{none, nil}, want: []error{none, nil, nil}, asked: 2},
		"down, and nothing is kept": {maxAge: Forever, stale: time.Hour, answers: []error{refused(500)}, want: []error{refused(500)}, asked: 1},
	} {
		for _, text := range []string{"first", strings.Repeat("long", shortBody)} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, len(text)), func(t *testing.T) {
				t.Parallel()
				c := newCache(t, 1<<20)
				var asked atomic.Int32
				for i, want := range test.want {
					d, err := c.Document(t.Context(), Query{
						Kind: "test", Bucket: "models", Key: "d", MaxAge: test.maxAge, StaleIfError: test.stale, Request: &Request{},
						Keeps: func(upstream.Document) bool { return test.keeps },
						Fetch: func(context.Context) (upstream.Document, error) {
							n := asked.Add(1)
							if err := test.answers[n-1]; err != nil {
								return upstream.Document{}, err
							}
							return upstream.Document{Status: 200, Body: io.NopCloser(strings.NewReader(text)), Length: -1, Fetched: time.Now()}, nil
						},
					})
					if status(err) != status(want) {
						t.Errorf("time %d: %+v, %v, want %v", i, d, err, want)
					}
					if err != nil {
						continue
					}
					if body, err := io.ReadAll(d.Body); err != nil || string(body) != text || d.Close() != nil {
						t.Errorf("time %d: %d bytes, %v, want %d", i, len(body), err, len(text))
					}
				}
				if asked.Load() != test.asked {
					t.Errorf("asked %d times, want %d", asked.Load(), test.asked)
				}
			})
		}
	}
}

// status is that of an answer of upstream; 200 without an error, 0 if there was no answer.
func status(err error) int {
	var refused *upstream.Refused
	if errors.As(err, &refused) {
		return refused.Answer.Status
	}
	if err != nil {
		return 0
	}
	return http.StatusOK
}
