// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/s3test"
)

// listedPaths are files whose names need care in URIs, in URLs and in the order of keys.
var listedPaths = []string{"a b.parquet", "a%20b.parquet", "day=1/x+y&z.parquet", "day=1/é.parquet", "deep/er/_hidden", "z"}

// list returns the paths of a listing, sorted, and checks that each entry opens with the listed size and version.
func list(t *testing.T, s *Store, uri string) ([]string, error) {
	t.Helper()
	var paths []string
	for e, err := range s.List(t.Context(), uri) {
		if err != nil {
			return nil, err
		}
		paths = append(paths, e.Path)
		if len(paths) > 10 {
			continue
		}
		f, err := s.Open(t.Context(), e.URI)
		if err != nil {
			t.Fatal(err)
		}
		if f.Size() != e.Size || f.Version() != e.Version || e.Version == "" {
			t.Errorf("%s was listed with %d bytes and version %q, it has %d and %q", e.URI, e.Size, e.Version, f.Size(), f.Version())
		}
		_ = f.Close()
	}
	slices.Sort(paths)
	return paths, nil
}

func TestList(t *testing.T) {
	srv := s3test.Start(t)
	folder := t.TempDir()
	for i, p := range listedPaths {
		text := []byte(strings.Repeat("x", i))
		srv.Put("bucket", "data/"+p, text)
		at := filepath.Join(folder, "data", p)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	srv.Put("bucket", "data/empty/", nil) // as consoles mark folders
	srv.Put("bucket", "database/other", data)
	srv.Put("alone", "x", data)
	t.Chdir(folder)
	if err := os.Symlink(filepath.Join(folder, "data", "day=1"), filepath.Join(folder, "linked")); err != nil {
		t.Fatal(err)
	}
	s := New(Config{S3: S3{Endpoint: srv.URL(), AccessKeyID: "k", SecretAccessKey: "s"}, GCS: GCS{Endpoint: srv.URL(), Anonymous: true}})
	t.Cleanup(s.Idle)
	linked := []string{"x+y&z.parquet", "é.parquet"}
	tests := map[string][]string{
		"s3://bucket/data":              listedPaths,
		"s3a://bucket/data//":           listedPaths,
		"s3://bucket/data/day=1":        linked,
		"s3://bucket/data/z":            {""},
		"s3://alone":                    {"x"},
		"s3://alone/":                   {"x"},
		"gs://bucket/data/":             listedPaths,
		folder + "/data":                listedPaths,
		"file://" + folder + "/data/":   listedPaths,
		"data":                          listedPaths,
		"./data/day=1/":                 linked,
		"linked":                        linked,
		"data/z":                        {""},
		"file://" + folder + "/d%61ta/": listedPaths,
	}
	for uri, want := range tests {
		t.Run(uri, func(t *testing.T) {
			got, err := list(t, s, uri)
			if d := cmp.Diff(want, got); err != nil || d != "" {
				t.Errorf("%v (-want +got):\n%s", err, d)
			}
		})
	}
	for _, uri := range []string{"s3://bucket/dat", "gs://bucket/none/", folder + "/none", "s3://none/x"} {
		_, err := list(t, s, uri)
		checkError(t, err, fs.ErrNotExist, nil)
	}
}

func TestListPages(t *testing.T) {
	srv := s3test.Start(t)
	for i := range 2500 {
		srv.Put("bucket", fmt.Sprintf("data/%04d", i), nil)
	}
	s := New(Config{S3: S3{Endpoint: srv.URL(), AccessKeyID: "k", SecretAccessKey: "s"}, GCS: GCS{Endpoint: srv.URL(), Anonymous: true}})
	t.Cleanup(s.Idle)
	for _, uri := range []string{"s3://bucket/data/", "gs://bucket/data/"} {
		srv.Forget()
		got, err := list(t, s, uri)
		if err != nil || len(got) != 2500 || got[2499] != "2499" {
			t.Errorf("%s: %d entries, %v", uri, len(got), err)
		}
		pages := slices.DeleteFunc(srv.Requests(), func(r s3test.Request) bool { return r.Key != "" })
		if len(pages) != 3 {
			t.Errorf("%s: %d requests, want 3: %+v", uri, len(pages), pages)
		}
	}
	for range s.List(t.Context(), "s3://bucket/data") {
		break // a consumer may end early
	}
}

func TestListAzure(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch name := strings.TrimPrefix(r.URL.Path, "/acct/box/"); {
		case q.Get("comp") != "list":
			w.Header().Set("ETag", `"0x`+name+`"`)
			http.ServeContent(w, r, "", fixedTime, strings.NewReader("12345"))
		case q.Get("prefix") != "data/" || q.Get("restype") != "container":
			t.Errorf("query %s", r.URL.RawQuery)
		default:
			name, next := "data/a", "more"
			if q.Get("marker") == "more" {
				name, next = "data/b", ""
			}
			w.Header().Set("Content-Type", "application/xml")
			_, _ = fmt.Fprintf(w, `<EnumerationResults><Blobs><Blob><Name>%s</Name><Properties><Content-Length>5</Content-Length><Etag>0x%s</Etag></Properties></Blob></Blobs><NextMarker>%s</NextMarker></EnumerationResults>`, name, name, next)
		}
	}))
	t.Cleanup(srv.Close)
	s := New(Config{Azure: Azure{Endpoint: srv.URL, Anonymous: true}})
	t.Cleanup(s.Idle)
	got, err := list(t, s, "abfss://box@acct.dfs.core.windows.net/data")
	if d := cmp.Diff([]string{"a", "b"}, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func TestListMayBeDenied(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	t.Cleanup(srv.Close)
	s := New(Config{S3: S3{Endpoint: srv.URL, AccessKeyID: "k", SecretAccessKey: "s"}})
	t.Cleanup(s.Idle)
	_, err := list(t, s, "s3://bucket/data")
	checkError(t, err, fs.ErrPermission, []string{"s3:ListBucket", "bucket"})
}

func TestListOfNothing(t *testing.T) {
	_, err := list(t, New(Config{}), filepath.Join(t.TempDir(), "none"))
	checkError(t, err, fs.ErrNotExist, []string{"no file or folder of this name", "check the path"})
}

func TestListOfLinksThatLeadBack(t *testing.T) {
	folder := t.TempDir()
	if err := os.Symlink(folder, filepath.Join(folder, "again")); err != nil {
		t.Fatal(err)
	}
	_, err := list(t, New(Config{}), folder)
	if err == nil || !strings.Contains(err.Error(), "levels of symbolic links") && !strings.Contains(err.Error(), "folders deep") {
		t.Errorf("got %v", err)
	}
}
