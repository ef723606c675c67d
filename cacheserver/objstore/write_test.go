// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWrite writes objects to a server whose first answer to each is that it is overloaded.
func TestWrite(t *testing.T) {
	written, tries := map[string][]byte{}, map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		tries[r.URL.Path]++
		switch {
		case err != nil || r.Method != http.MethodPut:
			w.WriteHeader(http.StatusBadRequest)
		case strings.Contains(r.URL.Path, "denied"):
			w.WriteHeader(http.StatusForbidden)
		case tries[r.URL.Path] == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			written[r.URL.Path] = body
			w.WriteHeader(map[bool]int{true: http.StatusCreated, false: http.StatusOK}[strings.HasPrefix(r.URL.Path, "/acct")])
		}
	}))
	t.Cleanup(server.Close)
	s := New(Config{
		Retry: Retry{FirstPause: time.Millisecond},
		S3:    S3{Endpoint: server.URL, AccessKeyID: "a", SecretAccessKey: "b"},
		GCS:   GCS{Endpoint: server.URL, Anonymous: true},
		Azure: Azure{Endpoint: server.URL, Anonymous: true},
	})
	t.Cleanup(s.Idle)
	for uri, path := range map[string]string{
		"s3://bucket/a b/x=%2F.parquet": "/bucket/a b/x=%2F.parquet", "gs://bucket/g/x.parquet": "/bucket/g/x.parquet",
		"abfss://box@acct.dfs.core.windows.net/x.parquet": "/acct/box/x.parquet",
	} {
		if err := s.Write(t.Context(), uri, data); err != nil || !bytes.Equal(written[path], data) {
			t.Errorf("%s: %d bytes, %v", uri, len(written[path]), err)
		}
		if tries[path] != 2 {
			t.Errorf("%s: %d requests, want 2", uri, tries[path])
		}
	}
	err := s.Write(t.Context(), "s3://bucket/denied", data)
	if err == nil || !strings.HasPrefix(err.Error(), "write s3://bucket/denied: access denied") || !strings.Contains(err.Error(), "right to put objects") {
		t.Errorf("no right to write: %v", err)
	}
	if err := s.Write(t.Context(), "hf://owner/name/x", data); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a hub: %v", err)
	}
}

func TestWriteLocal(t *testing.T) {
	s, folder := New(Config{}), t.TempDir()
	at := filepath.Join(folder, "new", "x.parquet")
	for _, uri := range []string{"file://" + at, at} {
		for _, want := range [][]byte{data, []byte("shorter"), nil} {
			if err := s.Write(t.Context(), uri, want); err != nil {
				t.Fatal(err)
			}
			if got, err := s.ReadAtMost(t.Context(), uri, 1<<30); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes of %d, %v", uri, len(got), len(want), err)
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(folder, "new", "*")); err != nil || len(left) != 1 {
		t.Errorf("files: %v, %v", left, err)
	}
	if err := s.Write(t.Context(), filepath.Join(at, "below"), data); err == nil || !strings.HasPrefix(err.Error(), "write "+at) {
		t.Errorf("below a file: %v", err)
	}
}
