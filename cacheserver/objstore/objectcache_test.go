// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore/blockcache"
	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/serve"
	"github.com/kubeflow/datacache/objectcache/store"
	"github.com/kubeflow/datacache/test/kit/s3test"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// objectCacheUnderTest is a real object cache; a test can install a handler in front of it.
type objectCacheUnderTest struct {
	blockcache.Config
	handler  http.Handler
	front    atomic.Pointer[func(w http.ResponseWriter, r *http.Request, next http.Handler)]
	requests atomic.Int64
}

func startObjectCache(t *testing.T) *objectCacheUnderTest {
	t.Helper()
	objects, err := store.Open(store.Config{Dir: t.TempDir(), Limits: store.Limits{Total: 1 << 30, Quotas: map[string]int64{"tables": 1 << 30}}})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := identity.ParseTokens([]byte("the-token team"))
	if err != nil {
		t.Fatal(err)
	}
	config := buckets.Config{TotalLimit: 1 << 30, Buckets: map[string]buckets.Bucket{"tables": {Name: "tables", Public: true, Quota: 1 << 30}}}
	server := serve.New(serve.Config{
		Store: objects, Router: router.New("here"), Log: slog.New(slog.DiscardHandler),
		Reviewer: identity.Static(func() identity.Tokens { return tokens }),
		Buckets:  func() buckets.Config { return config }, BucketsRejected: func() bool { return false },
	})
	server.Open()
	c := &objectCacheUnderTest{}
	c.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.requests.Add(1)
		if front := c.front.Load(); front != nil {
			(*front)(w, r, server)
			return
		}
		server.ServeHTTP(w, r)
	})
	listening := httptest.NewServer(c.handler)
	t.Cleanup(func() {
		listening.Close()
		objects.Close()
	})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Config = blockcache.Config{URL: listening.URL, Bucket: "tables", TokenFile: token, Timeout: 2 * time.Minute}
	return c
}

// through installs a handler in front of the object cache.
func (c *objectCacheUnderTest) through(front func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	c.front.Store(&front)
}

// readAll reads an object with a single ReadAt.
func readAll(t *testing.T, s *Store, uri string) []byte {
	t.Helper()
	data, err := s.ReadAtMost(t.Context(), uri, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestSecondReadIsFromTheObjectCache(t *testing.T) {
	srv := s3test.Start(t)
	cache := startObjectCache(t)
	for _, size := range []int{0, 1, 100, blockcache.PageSize, blockcache.PageSize + 1, blockcache.BlockSize, blockcache.BlockSize + 12345} {
		data := pattern(size)
		uri := srv.Put("bucket", "warehouse/day=2026%2F01 01/ü.parquet", data)
		first, _ := newTestStore(t, srv, Config{ObjectCache: cache.Config})
		if got := readAll(t, first, uri); !bytes.Equal(got, data) {
			t.Errorf("%d bytes, first read: the bytes differ", size)
		}
		second, _ := newTestStore(t, srv, Config{ObjectCache: cache.Config})
		if got := readAll(t, second, uri); !bytes.Equal(got, data) {
			t.Errorf("%d bytes, second read: the bytes differ", size)
		}
		one := int64(min(size, 1)) // a one-byte response that reveals size and version
		if was, is := first.Stats(), second.Stats(); was.Bytes != int64(size)+one || is.Bytes != one || is.CacheBytes != int64(size) {
			t.Errorf("%d bytes: %d and %d read from the store, %d from the object cache, want %d, %d and %d",
				size, was.Bytes, is.Bytes, is.CacheBytes, int64(size)+one, one, size)
		}
		if stats := second.Stats(); stats.CacheMisses != 0 || stats.CacheFailures != 0 {
			t.Errorf("%d bytes: %+v, want neither miss nor failure", size, stats)
		}
	}
}

// TestObjectCacheOverTLS reads through an object cache whose certificate is verified by a file: at first there is none, then one of
// another authority, then the right one.
func TestObjectCacheOverTLS(t *testing.T) {
	srv := s3test.Start(t)
	cache := startObjectCache(t)
	secured := httptest.NewTLSServer(cache.handler)
	defer secured.Close()
	cfg := cache.Config
	cfg.URL, cfg.CAFile = secured.URL, filepath.Join(t.TempDir(), "ca.crt")
	data := pattern(blockcache.BlockSize + 1)
	uri := srv.Put("bucket", "file.parquet", data)
	filling, _ := newTestStore(t, srv, Config{ObjectCache: cache.Config})
	readAll(t, filling, uri)
	untrusted, err := otherAuthority()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name, pem string
		cached    int64
	}{
		{"no file", "", 0},
		{"no certificate", "nothing", 0},
		{"another authority", untrusted, 0},
		{"the authority", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secured.Certificate().Raw})), int64(len(data))},
	} {
		if step.pem != "" {
			if err := os.WriteFile(cfg.CAFile, []byte(step.pem), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before := cache.requests.Load()
		s, _ := newTestStore(t, srv, Config{ObjectCache: cfg})
		if got := readAll(t, s, uri); !bytes.Equal(got, data) {
			t.Errorf("%s: the bytes differ", step.name)
		}
		if stats := s.Stats(); stats.CacheBytes != step.cached || (stats.CacheFailures > 0) == (step.cached > 0) {
			t.Errorf("%s: %+v, want %d bytes from the object cache", step.name, stats, step.cached)
		}
		if asked := cache.requests.Load() > before; asked != (step.cached > 0) {
			t.Errorf("%s: the object cache got requests: %v", step.name, asked)
		}
	}
}

// otherAuthority returns a certificate that signed nothing here, as PEM.
func otherAuthority() (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		return "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(cryptorand.Reader, template, template, &key.PublicKey, key)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), err
}

func TestANewVersionIsReadAnew(t *testing.T) {
	srv := s3test.Start(t)
	cache := startObjectCache(t)
	for _, data := range [][]byte{pattern(300_000), bytes.Repeat([]byte("new"), 100_000)} {
		s, _ := newTestStore(t, srv, Config{ObjectCache: cache.Config})
		if got := readAll(t, s, srv.Put("bucket", "key", data)); !bytes.Equal(got, data) {
			t.Error("the bytes are of another version")
		}
	}
}

func TestAnyPartThroughTheObjectCache(t *testing.T) {
	srv := s3test.Start(t)
	cache := startObjectCache(t)
	data := pattern(blockcache.BlockSize + 300_001)
	uri := srv.Put("bucket", "key", data)
	random := seedtest.New(t)
	for round := range 2 {
		s, _ := newTestStore(t, srv, Config{ObjectCache: cache.Config, TailBytes: 1000})
		f := open(t, s, uri)
		for range 20 {
			off := random.IntN(len(data))
			want := data[off:min(off+1+random.IntN(200_000), len(data))]
			got := make([]byte, len(want))
			if n, err := f.ReadAt(got, int64(off)); n != len(want) || err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(got, want) {
				t.Fatalf("round %d: %d bytes at %d: %d, %v", round, len(want), off, n, err)
			}
		}
		if err := f.Prefetch(t.Context(), []Range{{Offset: 1, Length: int64(len(data)) - 2}}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(data)-2)
		if _, err := f.ReadAt(got, 1); err != nil || !bytes.Equal(got, data[1:len(data)-1]) {
			t.Fatalf("round %d: prefetched: %v, or the bytes differ", round, err)
		}
	}
}

func TestManyMissesAreOneRead(t *testing.T) {
	srv := s3test.Start(t)
	cache := startObjectCache(t)
	data := pattern(2_000_000)
	uri := srv.Put("bucket", "key", data)
	s, _ := newTestStore(t, srv, Config{ObjectCache: cache.Config, TailBytes: 1})
	var files []*File
	for range 20 {
		files = append(files, open(t, s, uri))
	}
	srv.Forget()
	var group sync.WaitGroup
	for i, f := range files {
		group.Go(func() {
			got := make([]byte, 1000)
			if _, err := f.ReadAt(got, int64(i)*100_000); err != nil || !bytes.Equal(got, data[i*100_000:][:1000]) {
				t.Errorf("read %d: %v, or the bytes differ", i, err)
			}
		})
	}
	group.Wait()
	// Reading the tail loaded the one block already, so the store gets no more requests.
	if got := srv.Requests(); len(got) != 0 {
		t.Errorf("%d requests to the store, want none: %v", len(got), ranges(srv))
	}
	if misses := s.Stats().CacheMisses; misses != 1 {
		t.Errorf("%d blocks were read from the store, want 1", misses)
	}
}

func TestMissesAtATimeShareOneRead(t *testing.T) {
	srv := s3test.Start(t)
	cache := startObjectCache(t)
	data := pattern(blockcache.BlockSize + 10)
	s, _ := newTestStore(t, srv, Config{ObjectCache: cache.Config, TailBytes: 1})
	f := open(t, s, srv.Put("bucket", "key", data))
	srv.Forget()
	// No request continues before all have missed.
	const readers = 10
	var missed sync.WaitGroup
	missed.Add(readers)
	var asked atomic.Int64
	cache.through(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(w, r)
		if r.Method == http.MethodGet && asked.Add(1) <= readers {
			missed.Done()
			missed.Wait()
		}
	})
	var group sync.WaitGroup
	for i := range readers {
		group.Go(func() {
			got := make([]byte, 1000)
			if _, err := f.ReadAt(got, int64(i)*100_000); err != nil || !bytes.Equal(got, data[i*100_000:][:1000]) {
				t.Errorf("read %d: %v, or the bytes differ", i, err)
			}
		})
	}
	group.Wait()
	if got := len(srv.Requests()); got != 1 {
		t.Errorf("%d requests to the store, want 1", got)
	}
}

func TestTheObjectCacheFails(t *testing.T) {
	refuse := func(status int) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { http.Error(w, "no", status) }
	}
	spoil := func(change func(answer *httptest.ResponseRecorder)) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			if r.Method == http.MethodGet {
				change(answer)
			}
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
		}
	}
	fronts := map[string]struct {
		front func(http.ResponseWriter, *http.Request, http.Handler)
		rests bool // whether the object cache gets no requests afterwards
	}{
		"no token":      {refuse(401), true},
		"not allowed":   {refuse(403), true},
		"unwell":        {refuse(500), true},
		"another page":  {refuse(200), true},
		"never has any": {refuse(404), false}, // it does not accept any block either
		"hangs": {func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = io.Copy(io.Discard, r.Body) // the server notices that the client closed the connection only after reading the body
			<-r.Context().Done()
		}, true},
		"a flipped byte": {spoil(func(a *httptest.ResponseRecorder) { a.Body.Bytes()[a.Body.Len()/2] ^= 1 }), false},
		"cut": {spoil(func(a *httptest.ResponseRecorder) {
			a.Body.Truncate(a.Body.Len() / 2)
			a.Header().Del("Content-Length")
		}), true},
		"another range": {spoil(func(a *httptest.ResponseRecorder) { a.Header().Set("Content-Range", "bytes 0-1/2") }), false},
	}
	for name, test := range fronts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := s3test.Start(t)
			cache := startObjectCache(t)
			data := pattern(300_000)
			uri := srv.Put("bucket", "key", data)
			filling, _ := newTestStore(t, srv, Config{ObjectCache: cache.Config})
			readAll(t, filling, uri)
			cache.through(test.front)
			cfg := cache.Config
			if name == "hangs" {
				cfg.Timeout = 200 * time.Millisecond
			}
			s, c := newTestStore(t, srv, Config{ObjectCache: cfg})
			if got := readAll(t, s, uri); !bytes.Equal(got, data) {
				t.Error("the bytes differ")
			}
			if stats := s.Stats(); stats.CacheFailures == 0 || stats.Bytes < int64(len(data)) {
				t.Errorf("%+v, want failures of the object cache, and all %d bytes from the store", stats, len(data))
			}
			before := cache.requests.Load()
			if got := readAll(t, s, uri); !bytes.Equal(got, data) {
				t.Error("second time: the bytes differ")
			}
			if rests := cache.requests.Load() == before; rests != test.rests {
				t.Errorf("the object cache was left alone after that: %v, want %v", rests, test.rests)
			}
			cache.front.Store(nil)
			if err := c.sleep(t.Context(), blockcache.RestTime); err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, s, uri); !bytes.Equal(got, data) || cache.requests.Load() == before {
				t.Error("the object cache is not asked again when it is well")
			}
		})
	}
}

func TestNoObjectCacheThere(t *testing.T) {
	srv := s3test.Start(t)
	cache := startObjectCache(t)
	cfg := cache.Config
	closed := httptest.NewServer(nil)
	closed.Close()
	cfg.URL = closed.URL
	data := pattern(100_000)
	s, _ := newTestStore(t, srv, Config{ObjectCache: cfg})
	if got := readAll(t, s, srv.Put("bucket", "key", data)); !bytes.Equal(got, data) {
		t.Error("the bytes differ")
	}
	cfg = cache.Config
	cfg.TokenFile = filepath.Join(t.TempDir(), "none")
	s, _ = newTestStore(t, srv, Config{ObjectCache: cfg})
	if got := readAll(t, s, srv.Put("bucket", "key", data)); !bytes.Equal(got, data) || s.Stats().CacheFailures == 0 {
		t.Error("no token file: the bytes differ, or no failure was counted")
	}
}

func TestTheStoreFailsBehindTheObjectCache(t *testing.T) {
	srv := s3test.Start(t)
	cache := startObjectCache(t)
	s, _ := newTestStore(t, srv, Config{ObjectCache: cache.Config, TailBytes: 1000})
	data := pattern(blockcache.BlockSize + 5000)
	f := open(t, s, srv.Put("bucket", "key", data))
	srv.Put("bucket", "key", pattern(blockcache.BlockSize+4999)) // overwritten under the same name
	if _, err := f.ReadAt(make([]byte, 1000), 0); !errors.Is(err, ErrChanged) {
		t.Errorf("error %v, want %v", err, ErrChanged)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Open(canceled, "s3://bucket/key"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	if failures := s.Stats().CacheFailures; failures != 0 {
		t.Errorf("%d failures of the object cache, want none: it did nothing wrong", failures)
	}
}
