// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// storeAddr is the address of the object store.
const storeAddr = "10.0.0.9:9000"

// trouble is the fault of an object store, for some of its requests.
type trouble string

// The troubles of a store.
const (
	none     trouble = ""
	refuses  trouble = "answers 503"
	stalls   trouble = "does not answer"
	truncate trouble = "ends bodies early"
)

// store is an S3 server with one lake's objects.
type store struct {
	seed uint64
	lake *lake

	mu      sync.Mutex
	version int // version of the table in version-hint.text
	oldest  int // oldest version of the table whose metadata file still exists
	trouble trouble
	share   float64 // fraction of the requests with the trouble
	ended   chan struct{}
	asked   map[string]uint64
	forged  bool // serve the lake's forged data files
}

func newStore(seed uint64, l *lake) *store {
	return &store{seed: seed, lake: l, version: 1, oldest: 1, asked: map[string]uint64{}, ended: make(chan struct{})}
}

// publish makes the table's next version current, if there is one; drop removes the metadata files of earlier versions.
func (s *store) publish(drop bool) (version int, moved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version == len(s.lake.versions) {
		return s.version, false
	}
	s.version++
	if drop {
		s.oldest = s.version
	}
	return s.version, true
}

// forge makes the store serve forged data files, under the names and tags of the lake's.
func (s *store) forge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forged = true
}

// ail sets the store's trouble and the fraction of requests that have it, or none. Requests stalled so far continue.
func (s *store) ail(t trouble, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble, s.share = t, share
	close(s.ended)
	s.ended = make(chan struct{})
}

// get finds an object and decides which trouble the request has.
func (s *store) get(key, span string) (data []byte, t trouble, ended chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what := key + " " + span
	s.asked[what]++
	if float64(mix(s.seed, hashOf(what), s.asked[what])>>11)/(1<<53) < s.share {
		t = s.trouble
	}
	if key == "t/metadata/version-hint.text" {
		return fmt.Appendf(nil, "%d", s.version), t, s.ended
	}
	for v := 1; v < s.oldest; v++ {
		if key == metadataOf(v) {
			return nil, t, s.ended
		}
	}
	if other := s.lake.forged[key]; s.forged && other != nil {
		return other, t, s.ended
	}
	return s.lake.objects[key], t, s.ended
}

// mix is a hash of three numbers.
func mix(a, b, c uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15 ^ c*0xd6e8feb86659fd93
	for range 2 {
		x = (x ^ x>>32) * 0xd6e8feb86659fd93
	}
	return x ^ x>>32
}

// ServeHTTP implements http.Handler.
func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, "/"+bucketName+"/")
	data, t, ended := s.get(key, r.Header.Get("Range"))
	switch {
	case t == stalls:
		select {
		case <-ended:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case t == refuses:
		http.Error(w, "<Error><Code>SlowDown</Code></Error>", http.StatusServiceUnavailable)
		return
	case data == nil:
		http.Error(w, "<Error><Code>NoSuchKey</Code></Error>", http.StatusNotFound)
		return
	case t == truncate:
		w = &shortWriter{w, len(data) / 3}
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%016x"`, hashOf(key+string(s.lake.objects[key]))))
	http.ServeContent(w, r, "", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), bytes.NewReader(data))
}

// shortWriter closes the connection after the given number of bytes of a body.
type shortWriter struct {
	http.ResponseWriter
	left int
}

// Write implements io.Writer.
func (w *shortWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		_, _ = w.ResponseWriter.Write(p[:len(p)+w.left])
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return w.ResponseWriter.Write(p)
}

// client returns the object store's client of a process at a host.
func (h *host) client(retry objstore.Retry) *objstore.Store {
	return objstore.New(objstore.Config{
		S3: objstore.S3{
			Region: "us-east-1", Endpoint: "http://" + storeAddr, AccessKeyID: "key", SecretAccessKey: "secret", Addressing: "path",
		},
		Dial: h.dialTCP, Retry: retry,
	})
}
