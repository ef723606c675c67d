// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/s3test"
)

// setEnv sets the variables of Server.Env for the rest of the test, then unsets names.
func setEnv(t *testing.T, srv *s3test.Server, unset ...string) {
	t.Helper()
	for _, e := range srv.Env() {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	for _, name := range unset {
		t.Setenv(name, "")
	}
}

func TestS3CredentialsAndRegion(t *testing.T) {
	type signed struct{ Key, Region string }
	tests := []struct {
		name  string
		cfg   S3
		unset []string
		want  signed
	}{
		{name: "by environment alone", want: signed{s3test.AccessKeyID, s3test.Region}},
		{name: "default region", unset: []string{"AWS_REGION"}, want: signed{s3test.AccessKeyID, "us-east-1"}},
		{name: "keys of Config win", cfg: S3{AccessKeyID: "mine", SecretAccessKey: "s", Region: "eu-west-1"}, want: signed{"mine", "eu-west-1"}},
		{name: "anonymous", cfg: S3{Anonymous: true}},
		{name: "path", cfg: S3{Addressing: "path"}, want: signed{s3test.AccessKeyID, s3test.Region}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := s3test.Start(t)
			setEnv(t, srv, tt.unset...)
			uri := srv.Put("bucket", "key", []byte("hello"))
			s := New(Config{S3: tt.cfg})
			t.Cleanup(s.Idle)
			got, err := s.ReadAtMost(t.Context(), uri, 1<<30)
			if err != nil || string(got) != "hello" {
				t.Fatalf("%q, %v", got, err)
			}
			r := srv.Requests()[0]
			if d := cmp.Diff(tt.want, signed{r.AccessKeyID, r.Region}); d != "" {
				t.Errorf("signed by (-want +got):\n%s", d)
			}
		})
	}
}

func TestS3NoCredentials(t *testing.T) {
	srv := s3test.Start(t)
	setEnv(t, srv, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
	s := New(Config{})
	_, err := s.Open(t.Context(), "s3://bucket/key")
	checkError(t, err, fs.ErrPermission, []string{"no usable credentials", "set the credentials (AWS_ACCESS_KEY_ID"})
	if st := s.Stats(); st.Retries != 0 || len(srv.Requests()) != 0 {
		t.Errorf("stats %+v, %d requests", st, len(srv.Requests()))
	}
}

func TestS3ConfigErrors(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		say  string
	}{
		{"half a key", Config{S3: S3{AccessKeyID: "id"}}, "only the id or only the secret"},
		{"addressing", Config{S3: S3{Addressing: "sideways"}}, `S3 addressing "sideways": use path, virtual`},
		{"no CA file", Config{CAFile: "/nonexistent/ca.pem"}, "CA file: open /nonexistent/ca.pem"},
		{"CA file without certificates", Config{CAFile: "s3_test.go"}, "CA file s3_test.go holds no PEM certificate"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.cfg).Open(t.Context(), "s3://bucket/key")
			checkError(t, err, nil, []string{"read s3://bucket/key", tt.say})
		})
	}
}

func TestS3BucketOfAnotherRegion(t *testing.T) {
	srv := s3test.Start(t)
	s, _ := newTestStore(t, srv, Config{})
	uri := srv.Put("bucket", "key", []byte("hello"))
	srv.Inject(s3test.Match{Count: 1}, s3test.Redirect("eu-west-3"))
	for range 2 {
		if got, err := s.ReadAtMost(t.Context(), uri, 1<<30); err != nil || string(got) != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	var regions []string
	for _, r := range srv.Requests() {
		regions = append(regions, r.Region)
	}
	if d := cmp.Diff([]string{"us-east-1", "eu-west-3", "eu-west-3"}, regions); d != "" {
		t.Errorf("regions asked (-want +got):\n%s", d)
	}
}

func TestS3SessionTokenIsSent(t *testing.T) {
	var token string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token = r.Header.Get("X-Amz-Security-Token")
		http.ServeContent(w, r, "", fixedTime, strings.NewReader("hello"))
	}))
	defer srv.Close()
	s := New(Config{S3: S3{Endpoint: srv.URL, AccessKeyID: "a", SecretAccessKey: "b", SessionToken: "c"}})
	defer s.Idle()
	if got, err := s.ReadAtMost(t.Context(), "s3://bucket/key", 1<<30); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	if token != "c" {
		t.Errorf("session token %q, want c", token)
	}
}

// TestS3TLS checks that CAFile determines the trusted authorities, and that an unknown authority is not retried.
func TestS3TLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", fixedTime, strings.NewReader("hello"))
	}))
	defer srv.Close()
	srv.Config.ErrorLog = nil
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}
	if err := os.WriteFile(ca, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{S3: S3{Endpoint: srv.URL, Anonymous: true}}
	stranger := New(cfg)
	_, err := stranger.Open(t.Context(), "s3://bucket/key")
	checkError(t, err, nil, []string{"certificate signed by unknown authority", "its certificate"})
	if st := stranger.Stats(); st.Retries != 0 {
		t.Errorf("stats %+v: an unknown authority is tried again", st)
	}
	cfg.CAFile = ca
	friend := New(cfg)
	defer friend.Idle()
	if got, err := friend.ReadAtMost(t.Context(), "s3://bucket/key", 1<<30); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestOddServers reads from servers that violate the protocol.
func TestOddServers(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 5000)
	reply := func(w http.ResponseWriter, status int, contentRange string, n int) {
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Content-Length", fmt.Sprint(n))
		if contentRange != "" {
			w.Header().Set("Content-Range", contentRange)
		}
		w.WriteHeader(status)
		_, _ = w.Write(body[:n]) // the client may have closed the connection already
	}
	tests := []struct {
		name string
		tail func(w http.ResponseWriter) // answers the request for the last 1000 bytes
		read func(w http.ResponseWriter) // answers the request for the first 10
		say  string
	}{
		{name: "range ignored at open", tail: func(w http.ResponseWriter) { reply(w, 200, "", 5000) }, say: "asked for the last 1000 bytes, got 5000 from offset 0 of 5000"},
		{name: "fewer than the tail", tail: func(w http.ResponseWriter) { reply(w, 206, "bytes 4100-4999/5000", 900) }, say: "got 900 from offset 4100"},
		{name: "headers at odds", tail: func(w http.ResponseWriter) { reply(w, 206, "bytes 4000-4999/5000", 900) }, say: "the answer is not what was asked for"},
		{name: "no total", tail: func(w http.ResponseWriter) { reply(w, 206, "bytes 4000-4999/*", 1000) }, say: "the answer is not what was asked for"},
		{name: "range ignored at read", read: func(w http.ResponseWriter) { reply(w, 200, "", 5000) }, say: "asked for 10 bytes at 0 of 5000, got 5000 at 0"},
		{name: "another range", read: func(w http.ResponseWriter) { reply(w, 206, "bytes 1-10/5000", 10) }, say: "asked for 10 bytes at 0 of 5000, got 10 at 1"},
		{name: "fewer", read: func(w http.ResponseWriter) { reply(w, 206, "bytes 0-8/5000", 9) }, say: "got 9 at 0"},
		{name: "more", read: func(w http.ResponseWriter) { reply(w, 206, "bytes 0-10/5000", 11) }, say: "got 11 at 0"},
		{name: "another size", read: func(w http.ResponseWriter) { reply(w, 206, "bytes 0-9/5001", 10) }, say: "changed while it was read: it had 5000 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Header.Get("Range") != "bytes=-1000":
					tt.read(w)
				case tt.tail != nil:
					tt.tail(w)
				default:
					reply(w, 206, "bytes 4000-4999/5000", 1000)
				}
			}))
			defer srv.Close()
			s := New(Config{TailBytes: 1000, S3: S3{Endpoint: srv.URL, Anonymous: true}})
			defer s.Idle()
			f, err := s.Open(t.Context(), "s3://bucket/key")
			if tt.read != nil {
				if err != nil {
					t.Fatal(err)
				}
				_, err = f.ReadAt(make([]byte, 10), 0)
			}
			checkError(t, err, nil, []string{"read s3://bucket/key", tt.say})
			if st := s.Stats(); st.Retries != 0 {
				t.Errorf("stats %+v: tried again", st)
			}
		})
	}
}

// TestTagChecks checks that a store that ignores If-Match is detected by the tag of its response, and that weak tags, which match
// nothing, are not sent.
func TestTagChecks(t *testing.T) {
	tests := []struct {
		name, first, second string
		ifMatch             string
		changed             bool
	}{
		{name: "same", first: `"1"`, second: `"1"`, ifMatch: `"1"`},
		{name: "another", first: `"1"`, second: `"2"`, ifMatch: `"1"`, changed: true},
		{name: "weak", first: `W/"1"`, second: `W/"1"`},
		{name: "weak, another", first: `W/"1"`, second: `W/"2"`, changed: true},
		{name: "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var ifMatch string
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tag := tt.second
				if r.Header.Get("Range") == "bytes=-5" {
					tag = tt.first
				}
				ifMatch = r.Header.Get("If-Match")
				r.Header.Del("If-Match")
				setUnlessEmpty(w.Header(), "ETag", tag)
				http.ServeContent(w, r, "", fixedTime, strings.NewReader("hello world"))
			}))
			defer srv.Close()
			s := New(Config{TailBytes: 5, S3: S3{Endpoint: srv.URL, Anonymous: true}})
			defer s.Idle()
			f := open(t, s, "s3://bucket/key")
			p := make([]byte, 5)
			_, err := f.ReadAt(p, 0)
			if tt.changed {
				checkError(t, err, ErrChanged, []string{"it had 11 bytes and tag " + tt.first})
			} else if err != nil || string(p) != "hello" {
				t.Errorf("%q, %v", p, err)
			}
			if ifMatch != tt.ifMatch {
				t.Errorf("If-Match %s, want %s", ifMatch, tt.ifMatch)
			}
		})
	}
}
