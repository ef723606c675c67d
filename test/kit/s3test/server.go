// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package s3test is an S3 server for tests, in memory and on loopback, with fault injection.
package s3test

import (
	"bytes"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// Credentials and region for clients; the server accepts any.
const (
	AccessKeyID     = "test-key"
	SecretAccessKey = "test-secret"
	Region          = "us-east-1"
)

// lastModified is the modification time of objects that tests put.
const lastModified = "Thu, 01 Jan 2026 00:00:00 GMT"

// Server is a running S3 server. It is safe for concurrent use. It stops at the end of the test that started it.
type Server struct {
	t       testing.TB
	backend *s3mem.Backend
	s3      http.Handler
	http    *httptest.Server

	mu          sync.Mutex
	log         []*Request
	faults      []*Injected
	connections int
}

// Request is a request that the server received.
type Request struct {
	Method string
	Bucket string
	Key    string
	Range  string // the Range header
	Status int    // of the response
	Bytes  int64  // length of the body, according to the response header
	Fault  string // the fault that was applied, empty if none
	// AccessKeyID and Region are from the request's signature, empty if it was not signed.
	AccessKeyID string
	Region      string
}

// Start runs a server on a free port of 127.0.0.1 until the end of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	backend := s3mem.New()
	s := &Server{
		t:       t,
		backend: backend,
		s3:      gofakes3.New(backend, gofakes3.WithoutVersioning()).Server(),
	}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.mu.Lock()
			s.connections++
			s.mu.Unlock()
		}
	}
	s.http.Start()
	t.Cleanup(s.stop)
	return s
}

// stop releases stalled responses and stops the server.
func (s *Server) stop() {
	s.mu.Lock()
	faults := slices.Clone(s.faults)
	s.mu.Unlock()
	for _, f := range faults {
		f.Release()
	}
	s.http.CloseClientConnections()
	s.http.Close()
}

// URL is the server's endpoint, http://127.0.0.1:port.
func (s *Server) URL() string { return s.http.URL }

// Properties returns the Iceberg FileIO properties for accessing the server.
func (s *Server) Properties() map[string]string {
	return map[string]string{
		"s3.endpoint":          s.URL(),
		"s3.region":            Region,
		"s3.access-key-id":     AccessKeyID,
		"s3.secret-access-key": SecretAccessKey,
		"s3.path-style-access": "true",
	}
}

// Env returns the AWS SDKs' environment variables for accessing the server, as name=value; they also disable the machine's own
// configuration and metadata. pyarrow ignores the endpoint: pass it as endpoint_override.
func (s *Server) Env() []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + AccessKeyID,
		"AWS_SECRET_ACCESS_KEY=" + SecretAccessKey,
		"AWS_SESSION_TOKEN=",
		"AWS_REGION=" + Region,
		"AWS_ENDPOINT_URL_S3=" + s.URL(),
		"AWS_CONFIG_FILE=/dev/null",
		"AWS_SHARED_CREDENTIALS_FILE=/dev/null",
		"AWS_EC2_METADATA_DISABLED=true",
		"AWS_REQUEST_CHECKSUM_CALCULATION=when_required",
		"AWS_RESPONSE_CHECKSUM_VALIDATION=when_required",
	}
}

// Put stores data, creating the bucket if it does not exist, and returns the object's URI.
func (s *Server) Put(bucket, key string, data []byte) string {
	s.t.Helper()
	s.Bucket(bucket)
	if _, err := s.backend.PutObject(bucket, key, map[string]string{"Last-Modified": lastModified}, bytes.NewReader(data), int64(len(data)), nil); err != nil {
		s.t.Fatalf("s3test: put %s/%s: %v", bucket, key, err)
	}
	return "s3://" + bucket + "/" + key
}

// Bucket creates a bucket if it does not exist.
func (s *Server) Bucket(name string) {
	s.t.Helper()
	if ok, err := s.backend.BucketExists(name); err == nil && ok {
		return
	}
	if err := s.backend.CreateBucket(name); err != nil {
		s.t.Fatalf("s3test: make bucket %s: %v", name, err)
	}
}

// Get returns an object's bytes.
func (s *Server) Get(bucket, key string) []byte {
	s.t.Helper()
	obj, err := s.backend.GetObject(bucket, key, nil)
	if err != nil {
		s.t.Fatalf("s3test: get %s/%s: %v", bucket, key, err)
	}
	data, err := io.ReadAll(obj.Contents)
	if err != nil {
		s.t.Fatalf("s3test: get %s/%s: %v", bucket, key, err)
	}
	return data
}

// Delete removes an object.
func (s *Server) Delete(bucket, key string) {
	s.t.Helper()
	if _, err := s.backend.DeleteObject(bucket, key); err != nil {
		s.t.Fatalf("s3test: delete %s/%s: %v", bucket, key, err)
	}
}

// Objects lists the keys in a bucket, sorted.
func (s *Server) Objects(bucket string) []string {
	s.t.Helper()
	list, err := s.backend.ListBucket(bucket, nil, gofakes3.ListBucketPage{})
	if err != nil {
		s.t.Fatalf("s3test: list %s: %v", bucket, err)
	}
	keys := map[string]bool{}
	for _, c := range list.Contents {
		keys[c.Key] = true
	}
	return slices.Sorted(maps.Keys(keys))
}

// Requests returns the requests since Start or Forget, in the order of arrival. A request whose response has not begun has Status 0.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := make([]Request, len(s.log))
	for i, r := range s.log {
		log[i] = *r
	}
	return log
}

// Forget clears the log of requests.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = nil
}

// Connections is the number of TCP connections clients have made.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}
