// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
)

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLocal(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/plain.bin", []byte("plain"))
	write(t, dir+"/a b/region=eu%2Fwest/x.bin", []byte("literal"))
	write(t, dir+"/a b/100%/x.bin", []byte("percent"))
	write(t, dir+"/both%20/x.bin", []byte("literal wins"))
	write(t, dir+"/both /x.bin", []byte("decoded"))
	t.Chdir(dir)
	tests := []struct{ name, uri, want string }{
		{"absolute path", dir + "/plain.bin", "plain"},
		{"relative path", "plain.bin", "plain"},
		{"path with spaces and percent", dir + "/a b/region=eu%2Fwest/x.bin", "literal"},
		{"path that is no escape", dir + "/a b/100%/x.bin", "percent"},
		{"file:///", "file://" + dir + "/plain.bin", "plain"},
		{"file:/", "file:" + dir + "/plain.bin", "plain"},
		{"file://localhost/", "file://localhost" + dir + "/plain.bin", "plain"},
		{"FILE:///", "FILE://" + dir + "/plain.bin", "plain"},
		{"URI as pyiceberg writes it", "file://" + dir + "/a b/region=eu%2Fwest/x.bin", "literal"},
		{"URI as Java writes it", "file://" + dir + "/a%20b/region=eu%252Fwest/x.bin", "literal"},
		{"URI that is no escape", "file://" + dir + "/a b/100%/x.bin", "percent"},
		{"literal before decoded", "file://" + dir + "/both%20/x.bin", "literal wins"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New(Config{})
			f := open(t, s, tt.uri)
			got, err := s.ReadAtMost(t.Context(), tt.uri, 1<<30)
			if err != nil || string(got) != tt.want {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
			if _, err := s.ReadAtMost(t.Context(), tt.uri, int64(len(tt.want))-1); !errors.Is(err, ErrTooLong) || !strings.Contains(err.Error(), tt.uri) {
				t.Errorf("%v, want one that the object is too long", err)
			}
			if f.URI() != tt.uri || f.Size() != int64(len(tt.want)) {
				t.Errorf("URI %s, size %d", f.URI(), f.Size())
			}
			if err := iotest.TestReader(f, []byte(tt.want)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLocalErrors(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, uri string
		is        error
		say       string
	}{
		{"missing", dir + "/gone", fs.ErrNotExist, "read " + dir + "/gone: not found"},
		{"missing, escaped", "file://" + dir + "/g%20one", fs.ErrNotExist, "g%20one"},
		{"folder", dir, nil, "is not a regular file (d"},
		{"pipe", dir + "/fifo", nil, "is not a regular file (p"},
		{"empty", "", nil, "empty URI"},
		{"host", "file://host/path", nil, "three slashes"},
		{"no path", "file://localhost", nil, "path missing"},
		{"scheme", "hdfs://nn/path", nil, `scheme "hdfs" is not supported: use a path, file, s3`},
		{"no key", "s3://bucket", nil, "bucket or key missing: write s3://bucket/key"},
		{"no bucket", "s3:///key", nil, "bucket or key missing"},
		{"one slash", "s3:/bucket/key", nil, "bucket or key missing"},
		{"no container", "abfss://@acct/key", nil, "container missing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(Config{}).Open(t.Context(), tt.uri)
			checkError(t, err, tt.is, []string{tt.say})
		})
	}
}

func TestLocalReads(t *testing.T) {
	path := t.TempDir() + "/file"
	write(t, path, data)
	s := New(Config{})
	f := open(t, s, path)
	if err := f.Prefetch(t.Context(), []Range{{0, size}}); err != nil || f.Buffered() != 0 {
		t.Errorf("Prefetch of a local file: %v, %d bytes in memory", err, f.Buffered())
	}
	if err := f.Prefetch(t.Context(), []Range{{0, size + 1}}); err == nil {
		t.Error("Prefetch past the end is no error")
	}
	checkReadAt(t, f, data, 10, 1000)
	checkReadAt(t, f, data, size-10, 1000)
	checkReadAt(t, f, data, size, 1)
	if st := s.Stats(); st.Requests != 2 || st.Bytes != 1010 {
		t.Errorf("stats %+v, want 2 requests and 1010 bytes", st)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	_, err := f.ReadAt(make([]byte, 50), 80)
	checkError(t, err, ErrChanged, []string{"it had 100000 bytes when it was opened and ends at 100 now"})
}

func TestLocalCancel(t *testing.T) {
	path := t.TempDir() + "/file"
	write(t, path, data)
	ctx, cancel := context.WithCancel(t.Context())
	s := New(Config{})
	f, err := s.Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cancel()
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: %v", err)
	}
	if _, err := s.Open(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("Open: %v", err)
	}
}

// TestReaderContract runs testing/iotest's checks of Read, Seek and ReadAt on both kinds of File.
func TestReaderContract(t *testing.T) {
	path := t.TempDir() + "/file"
	write(t, path, data[:1000])
	remote := startAzure(t, data[:1000])
	s := New(Config{TailBytes: 100, Azure: Azure{Endpoint: remote.URL, Anonymous: true}})
	defer s.Idle()
	for name, uri := range map[string]string{"local": path, "remote": azureURI} {
		t.Run(name, func(t *testing.T) {
			if err := iotest.TestReader(open(t, s, uri), data[:1000]); err != nil {
				t.Error(err)
			}
			var b bytes.Buffer
			if _, err := io.Copy(&b, open(t, s, uri)); err != nil || !bytes.Equal(b.Bytes(), data[:1000]) {
				t.Errorf("io.Copy: %d bytes, %v", b.Len(), err)
			}
		})
	}
}
