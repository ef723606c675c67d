// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/s3test"
)

var fixedTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestGCS reads gs:// URIs from the S3 test server, since the XML API of Google Cloud Storage answers a GET in the same way.
func TestGCS(t *testing.T) {
	srv := s3test.Start(t)
	srv.Put("bucket", "a b/region=eu%2Fwest/x.parquet", data)
	s := New(Config{TailBytes: 1000, GCS: GCS{Endpoint: srv.URL(), Anonymous: true}})
	t.Cleanup(s.Idle)
	uri := "gs://bucket/a b/region=eu%2Fwest/x.parquet"
	got, err := s.ReadAtMost(t.Context(), uri, 1<<30)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if d := cmp.Diff([]string{"bytes=-1000", "bytes=0-98999"}, ranges(srv)); d != "" {
		t.Errorf("requests (-want +got):\n%s", d)
	}
	f := open(t, s, uri)
	srv.Put("bucket", "a b/region=eu%2Fwest/x.parquet", pattern(size+1))
	_, err = f.ReadAt(make([]byte, 10), 0)
	checkError(t, err, ErrChanged, nil)
	srv.Put("bucket", "empty", nil)
	if got, err := s.ReadAtMost(t.Context(), "gs://bucket/empty", 1<<30); err != nil || len(got) != 0 {
		t.Errorf("empty object: %d bytes, %v", len(got), err)
	}
	_, err = s.Open(t.Context(), "gs://bucket/gone")
	checkError(t, err, fs.ErrNotExist, []string{"read gs://bucket/gone: not found (404 NoSuchKey"})
	srv.Inject(s3test.Match{}, s3test.Deny())
	_, err = s.Open(t.Context(), uri)
	checkError(t, err, fs.ErrPermission, []string{"403 AccessDenied", "storage.objects.get on bucket/a b/"})
}

func TestGCSRequest(t *testing.T) {
	var got http.Header
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		http.ServeContent(w, r, "", fixedTime, strings.NewReader("hello"))
	}))
	defer srv.Close()
	// Emulators are often configured with the path of the JSON API, which the XML API does not use.
	s := New(Config{GCS: GCS{Endpoint: srv.URL + "/storage/v1/", Token: "tok", UserProject: "payer"}})
	defer s.Idle()
	if text, err := s.ReadAtMost(t.Context(), "gs://bucket/key", 1<<30); err != nil || string(text) != "hello" {
		t.Fatalf("%q, %v", text, err)
	}
	want := map[string]string{"Authorization": "Bearer tok", "X-Goog-User-Project": "payer", "Accept-Encoding": "gzip"}
	for name, value := range want {
		if got.Get(name) != value {
			t.Errorf("%s: %q, want %q", name, got.Get(name), value)
		}
	}
}

func TestGCSConfigErrors(t *testing.T) {
	tests := []struct {
		name string
		cfg  GCS
		say  string
	}{
		{"endpoint", GCS{Endpoint: "localhost"}, `GCS endpoint "localhost": give a URL`},
		{"no key file", GCS{CredentialsFile: "/nonexistent/key.json"}, "open /nonexistent/key.json"},
		{"not JSON", GCS{CredentialsJSON: "secret"}, "GCS credentials are not JSON"},
		{"unknown kind", GCS{CredentialsJSON: `{"type": "card"}`}, `GCS credentials of type "card"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(Config{GCS: tt.cfg}).Open(t.Context(), "gs://bucket/key")
			checkError(t, err, nil, []string{"read gs://bucket/key", tt.say})
			if strings.Contains(err.Error(), "secret") {
				t.Error("the credentials are in the error")
			}
		})
	}
}
