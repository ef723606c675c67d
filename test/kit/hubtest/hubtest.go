// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hubtest is a stand-in for a Hugging Face hub, with what huggingface_hub 2.4 and the libraries above it request.
package hubtest

import (
	"crypto/sha1" //nolint:gosec // Git names its objects so
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// Repo is a repository with one commit on the branch main.
type Repo struct {
	Kind    string // models or datasets
	ID      string // OWNER/NAME
	Readers []string
	// Private repositories do not exist for others than Readers; of Gated ones, others see everything but the files. A repository that
	// is neither is open to everybody.
	Private, Gated bool
	Files          map[string]File
	// Converted are the files of the branch refs/convert/parquet; empty: there is no such branch.
	Converted map[string]File
	// Info is the JSON object of the repository's description, its tree and its commits; empty: those of Files.
	Info string
}

// ConvertedCommit is the name of the commit of Converted.
func (r *Repo) ConvertedCommit() string { return strings.Repeat("c", 40) }

// File is a file of a repository.
type File struct {
	Text string
	LFS  bool // kept in LFS: named by its SHA-256, and sent by the hub's second server
	// Claims is the text whose digest the repository announces for the file; empty: Text. They have the same length.
	Claims string
}

// Commit is the name of the repository's commit.
func (r *Repo) Commit() string {
	sum := sha1.Sum([]byte(r.Kind + "/" + r.ID)) //nolint:gosec // Git names its objects so
	return hex.EncodeToString(sum[:])
}

// etag is the file's digest, as the hub names it.
func (f File) etag() string {
	if f.Claims != "" {
		f.Text = f.Claims
	}
	if f.LFS {
		sum := sha256.Sum256([]byte(f.Text))
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(f.Text), f.Text)) //nolint:gosec // Git names its objects so
	return hex.EncodeToString(sum[:])
}

// Hub is the running stand-in. Start makes one; its fields may be changed with Change while it runs.
type Hub struct {
	URL string
	// Page is the number of entries of one page of a tree; 0: no limit.
	Page int
	// Tokens are the valid tokens.
	Tokens map[string]bool
	// Fault, if it is set, answers a request for a file's bytes and reports whether it did.
	Fault func(w http.ResponseWriter, text string) bool
	// Refuse, if it is not 0, is the status of every answer of the hub's first server.
	Refuse int

	hub, cdn *httptest.Server
	mu       sync.Mutex
	repos    map[string]*Repo
	sent     map[string]int64 // bytes of files, by the file's path
	requests map[string]int   // by method and path
	seen     map[string]bool  // Authorization headers
}

// Start serves repositories until the test ends, at addresses of this machine's loopback interface.
func Start(t testing.TB, repos ...*Repo) *Hub {
	t.Helper()
	return StartAt(t, "127.0.0.1", repos...)
}

// StartAt is Start at an IP address.
func StartAt(t testing.TB, ip string, repos ...*Repo) *Hub {
	t.Helper()
	h := &Hub{Tokens: map[string]bool{}, repos: map[string]*Repo{}, sent: map[string]int64{}, requests: map[string]int{}, seen: map[string]bool{}}
	for _, r := range repos {
		h.repos[r.Kind+"/"+r.ID] = r
		for _, reader := range r.Readers {
			h.Tokens[reader] = true
		}
	}
	h.hub = proctest.Serve(t, net.JoinHostPort(ip, "0"), http.HandlerFunc(h.serve))
	h.cdn = proctest.Serve(t, net.JoinHostPort(ip, "0"), http.HandlerFunc(h.serveCDN))
	h.URL = h.hub.URL
	t.Cleanup(h.Stop)
	return h
}

// Stop closes both servers and their connections.
func (h *Hub) Stop() {
	for _, s := range []*httptest.Server{h.hub, h.cdn} {
		s.CloseClientConnections()
		s.Close()
	}
}

// Change changes the hub's fields while it runs.
func (h *Hub) Change(change func(h *Hub)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

// Sent is the number of bytes of files that were sent, by the file's path.
func (h *Hub) Sent(path string) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent[path]
}

// Requests is the number of requests, by method and path.
func (h *Hub) Requests(methodAndPath string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.requests[methodAndPath]
}

// Saw reports whether a request's Authorization contained a token.
func (h *Hub) Saw(token string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for each := range h.seen {
		if strings.Contains(each, token) {
			return true
		}
	}
	return false
}

// note records a request and returns its token.
func (h *Hub) note(r *http.Request) (token string, refuse int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests[r.Method+" "+r.URL.Path]++
	h.seen[r.Header.Get("Authorization")] = true
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), h.Refuse
}
