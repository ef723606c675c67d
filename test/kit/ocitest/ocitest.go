// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ocitest is a registry of container images with users, whose requests are counted.
package ocitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// Registry is a running registry. Start makes one.
type Registry struct {
	Host string // host:port, as in names of images
	URL  string

	server *httptest.Server
	realm  *httptest.Server // nil: clients use Basic credentials
	inner  http.Handler

	mu      sync.Mutex
	readers map[string][]string // USER:PASSWORD that read a repository; none: everybody
	has     map[string]int      // length of blobs, by REPOSITORY@DIGEST
	sent    map[string]int64    // bytes of blobs, by digest
	seen    map[string]bool     // Authorization headers
	wrap    Wrap
	tokens  map[string]string // USER:PASSWORD, or "" for nobody, by the realm's token
}

// Start serves until the test ends, at an address of this machine's loopback interface.
func Start(t testing.TB) *Registry {
	t.Helper()
	return start(t, "127.0.0.1")
}

// StartWithTokens is Start for a registry whose readers need a token, those without credentials too, as at the public ones.
func StartWithTokens(t testing.TB) *Registry {
	t.Helper()
	return StartWithTokensAt(t, "127.0.0.1")
}

// StartWithTokensAt is StartWithTokens at an IP address. Others may know the registry by another name: then set Host before Push.
func StartWithTokensAt(t testing.TB, ip string) *Registry {
	t.Helper()
	r := start(t, ip)
	r.realm = proctest.Serve(t, net.JoinHostPort(ip, "0"), http.HandlerFunc(r.serveToken))
	return r
}

func start(t testing.TB, ip string) *Registry {
	t.Helper()
	r := &Registry{
		inner:   registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		readers: map[string][]string{}, has: map[string]int{}, sent: map[string]int64{}, seen: map[string]bool{},
		tokens: map[string]string{},
	}
	r.server = proctest.Serve(t, net.JoinHostPort(ip, "0"), r)
	r.URL = r.server.URL
	r.Host = strings.TrimPrefix(r.URL, "http://")
	t.Cleanup(r.Stop)
	return r
}

// StopRealm closes the token server and its connections.
func (r *Registry) StopRealm() {
	r.realm.CloseClientConnections()
	r.realm.Close()
}

// serveToken issues a token, by GET with Basic credentials or by POST with a form.
func (r *Registry) serveToken(w http.ResponseWriter, request *http.Request) {
	user, password, _ := request.BasicAuth()
	if request.Method == http.MethodPost {
		user, password = request.PostFormValue("username"), request.PostFormValue("password")
	}
	reader := strings.TrimPrefix(user+":"+password, ":")
	r.mu.Lock()
	defer r.mu.Unlock()
	known := reader == ""
	for _, readers := range r.readers {
		known = known || slices.Contains(readers, reader)
	}
	if !known {
		http.Error(w, `{"details": "wrong user or password"}`, http.StatusUnauthorized)
		return
	}
	token := fmt.Sprintf("token-%d.of-nobody-else", len(r.tokens))
	r.tokens[token] = reader
	_, _ = fmt.Fprintf(w, `{"token": %q, "access_token": %q, "expires_in": 300}`, token, token)
}

// reader returns the USER:PASSWORD of a request; false if it needs a token that it does not have.
func (r *Registry) reader(request *http.Request) (reader string, ok bool) {
	if r.realm == nil {
		user, password, _ := request.BasicAuth()
		return user + ":" + password, true
	}
	token, _ := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
	r.mu.Lock()
	defer r.mu.Unlock()
	reader, ok = r.tokens[token]
	return reader, ok
}

// challenge is sent to clients without the right to read a repository.
func (r *Registry) challenge(repository string) string {
	if r.realm == nil {
		return `Basic realm="test"`
	}
	return fmt.Sprintf(`Bearer realm="%s/token",service="test",scope="repository:%s:pull"`, r.realm.URL, repository)
}

// Stop closes the registry, its token server and their connections.
func (r *Registry) Stop() {
	if r.realm != nil {
		r.StopRealm()
	}
	r.server.CloseClientConnections()
	r.server.Close()
}

// Continue serves again after Stop, at the same addresses and with the same images.
func (r *Registry) Continue(t testing.TB) {
	t.Helper()
	r.server = proctest.Serve(t, r.server.Listener.Addr().String(), r)
	if r.realm != nil {
		r.realm = proctest.Serve(t, r.realm.Listener.Addr().String(), http.HandlerFunc(r.serveToken))
	}
}

// Wrap returns the writer for the answer to a client's GET of a blob; nil: it answered the request itself.
type Wrap func(w http.ResponseWriter, r *http.Request, digest string) http.ResponseWriter

// Wrap sets a function that is called for each GET of a blob; nil removes it.
func (r *Registry) Wrap(wrap Wrap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrap = wrap
}

// Sent is the number of bytes of a blob that were sent.
func (r *Registry) Sent(digest string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent[digest]
}

// Saw reports whether a request's Authorization contained a text.
func (r *Registry) Saw(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for each := range r.seen {
		if strings.Contains(each, text) {
			return true
		}
	}
	return false
}

// Image is an image that was pushed.
type Image struct {
	Name     string // HOST/REPOSITORY:TAG
	Manifest string // digest
	Config   string // digest
	Blobs    map[string]string
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`
}

// Push pushes an image of layers, which are tar files where it shall be run, with the tag v1 to a repository, which readers (USER:PASSWORD) can read; none: everybody.
func (r *Registry) Push(t testing.TB, repository string, layers []string, readers ...string) Image {
	t.Helper()
	image := Image{Name: r.Host + "/" + repository + ":v1", Blobs: map[string]string{}}
	r.mu.Lock()
	r.readers[repository] = readers
	r.mu.Unlock()
	add := func(kind, text string) descriptor {
		digest := digestOf(text)
		image.Blobs[digest] = text
		r.put(t, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+digest, "application/octet-stream", text)
		r.mu.Lock()
		r.has[repository+"@"+digest] = len(text)
		r.mu.Unlock()
		return descriptor{MediaType: "application/vnd.oci.image." + kind, Digest: digest, Size: len(text)}
	}
	manifest := map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
	}
	var list []descriptor
	diffs := []string{}
	for _, layer := range layers {
		d := add("layer.v1.tar", layer)
		list, diffs = append(list, d), append(diffs, d.Digest)
	}
	manifest["layers"] = list
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "of": repository, "rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := add("config.v1+json", string(config))
	manifest["config"], image.Config = d, d.Digest
	text, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	image.Manifest = digestOf(string(text))
	r.put(t, http.MethodPut, "/v2/"+repository+"/manifests/v1", "application/vnd.oci.image.manifest.v1+json", string(text))
	return image
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// put sends a request to the registry itself.
func (r *Registry) put(t testing.TB, method, target, contentType, body string) {
	t.Helper()
	request := httptest.NewRequestWithContext(context.WithoutCancel(t.Context()), method, target, bytes.NewReader([]byte(body)))
	request.Header.Set("Content-Type", contentType)
	answer := httptest.NewRecorder()
	r.inner.ServeHTTP(answer, request)
	if answer.Code != http.StatusCreated {
		t.Fatalf("%s %s: %d %s", method, target, answer.Code, answer.Body)
	}
}

// ServeHTTP answers reads.
func (r *Registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	rest := strings.TrimPrefix(request.URL.Path, "/v2/")
	repository, digest, isBlob := strings.Cut(rest, "/blobs/")
	if !isBlob {
		repository, _, _ = strings.Cut(rest, "/manifests/")
	}
	reader, known := r.reader(request)
	r.mu.Lock()
	r.seen[request.Header.Get("Authorization")+" "+reader] = true
	readers, wrap := r.readers[repository], r.wrap
	size, belongs := r.has[repository+"@"+digest]
	r.mu.Unlock()
	if !known || len(readers) > 0 && !slices.Contains(readers, reader) {
		w.Header().Set("WWW-Authenticate", r.challenge(repository))
		http.Error(w, `{"errors": [{"code": "UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return
	}
	if isBlob && !belongs {
		http.Error(w, fmt.Sprintf(`{"errors": [{"code": "BLOB_UNKNOWN", "message": %q}]}`, digest), http.StatusNotFound)
		return
	}
	if isBlob && request.Method == http.MethodGet {
		if wrap != nil {
			if w = wrap(w, request, digest); w == nil {
				return
			}
		}
		if asked := request.Header.Get("Range"); strings.HasSuffix(asked, "-") { // the inner registry wants an end
			request.Header.Set("Range", asked+strconv.Itoa(size-1))
		}
		w = &counter{ResponseWriter: w, count: func(n int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sent[digest] += int64(n)
		}}
	}
	r.inner.ServeHTTP(w, request)
}

type counter struct {
	http.ResponseWriter
	count func(n int)
}

// Write counts the bytes.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.count(n)
	return n, err
}
