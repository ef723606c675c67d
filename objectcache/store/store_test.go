// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const mib = 1 << 20

// open opens a store that counts bytes instead of blocks, and scans it.
func open(t *testing.T, dir string, limits Limits) *Store {
	t.Helper()
	return openWith(t, Config{Dir: dir, Limits: limits, Block: 1})
}

func openWith(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// one returns limits with a single bucket "b".
func one(quota int64) Limits { return Limits{Total: 1 << 40, Quotas: map[string]int64{"b": quota}} }

func put(t *testing.T, s *Store, bucket, key, data string) {
	t.Helper()
	if err := tryPut(s, bucket, key, data); err != nil {
		t.Fatalf("put %s/%s: %v", bucket, key, err)
	}
}

func tryPut(s *Store, bucket, key, data string) error {
	w, err := s.Create(bucket, key, int64(len(data)))
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := io.Copy(struct{ io.Writer }{w}, strings.NewReader(data)); err != nil {
		return err
	}
	return w.Commit()
}

// get reads an object; it returns "miss" if the object does not exist.
func get(t *testing.T, s *Store, bucket, key string) string {
	t.Helper()
	o, err := s.Get(bucket, key)
	if errors.Is(err, ErrMiss) {
		return "miss"
	}
	if err != nil {
		t.Fatalf("get %s/%s: %v", bucket, key, err)
	}
	defer o.Close()
	return read(t, o)
}

func read(t *testing.T, o *Object) string {
	t.Helper()
	r, err := o.Reader(0, o.Size())
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func statsOf(t *testing.T, s *Store, bucket string) BucketStats {
	t.Helper()
	for _, b := range s.Stats() {
		if b.Bucket == bucket {
			return b
		}
	}
	t.Fatalf("no stats of bucket %s", bucket)
	return BucketStats{}
}

// files returns the sizes of the objects' files in a store's folder, by path.
func files(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || slices.Contains([]string{logName, oldLogName, aliveName}, e.Name()) {
			return err
		}
		info, err := e.Info()
		if err == nil {
			sizes[path] = info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sizes
}

// fileOf is the path of an object's file.
func fileOf(s *Store, bucket, key string) string { return s.path(bucket, identify(bucket, key)) }

func TestPutAndGet(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(64*mib))
	objects := map[string]string{
		"a":                            "apple",
		"empty":                        "",
		"file:///tmp//x/../y":          "slashes",
		"with%20escape?and=query#hash": "raw",
		"\xc3\xa9\xff":                 "not even UTF-8",
		strings.Repeat("long/", 800):   strings.Repeat("0123456789abcdef", 1<<16),
		"/":                            "just a slash",
	}
	for key, data := range objects {
		put(t, s, "b", key, data)
	}
	for key, want := range objects {
		if got := get(t, s, "b", key); got != want {
			t.Errorf("%.20q = %.20q, want %.20q", key, got, want)
		}
	}
	if got := get(t, s, "b", "none"); got != "miss" {
		t.Errorf("a key that was never put = %q, want a miss", got)
	}
	put(t, s, "b", "a", "another")
	if got := get(t, s, "b", "a"); got != "another" {
		t.Errorf("after an overwrite %q, want %q", got, "another")
	}
	if err := s.Delete("b", "a"); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, "b", "a"); got != "miss" {
		t.Errorf("after a delete %q, want a miss", got)
	}
	if err := s.Delete("b", "a"); err != nil {
		t.Errorf("a second delete: %v", err)
	}
	accounted(t, s)
}

// accounted checks the store's sums against the files.
func accounted(t *testing.T, s *Store) {
	t.Helper()
	var stats, disk int64
	for _, b := range s.Stats() {
		stats += b.Bytes
	}
	for _, size := range files(t, s.dir) {
		disk += size
	}
	if stats != disk {
		t.Errorf("the store counts %d bytes, its files have %d", stats, disk)
	}
}

func TestWhatIsNotCommittedIsNotThere(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(mib))
	put(t, s, "b", "k", "before")
	w, err := s.Create("b", "k", 100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, "b", "k"); got != "before" {
		t.Errorf("during a write %q, want %q", got, "before")
	}
	if err := w.Commit(); err == nil {
		t.Error("4 of 100 announced bytes were committed, want an error")
	}
	w.Abort()
	if got := get(t, s, "b", "k"); got != "before" {
		t.Errorf("after a write that failed %q, want %q", got, "before")
	}
	accounted(t, s)
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Limits{Total: 500, Quotas: map[string]int64{"small": 100, "big": 1000}})
	tests := map[string]struct {
		bucket string
		size   int
		known  bool
		want   error
	}{
		"fits":                {"small", 100 - fixedSize - len("small/k"), true, nil},
		"fits, not announced": {"small", 100 - fixedSize - len("small/k"), false, nil},
		"a byte more":         {"small", 101 - fixedSize - len("small/k"), true, ErrTooLarge},
		"more, not announced": {"small", 101 - fixedSize - len("small/k"), false, ErrTooLarge},
		"over the total":      {"big", 500, true, ErrTooLarge},
		"a bucket not there":  {"none", 1, true, ErrTooLarge},
		"empty":               {"small", 0, true, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			announced := int64(-1)
			if test.known {
				announced = int64(test.size)
			}
			w, err := s.Create(test.bucket, "k", announced)
			if err == nil {
				_, err = w.Write(make([]byte, test.size))
				defer w.Abort()
			}
			if !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
	if _, err := s.Create("small", strings.Repeat("k", 100), 0); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a key as long as the quota: %v, want %v", err, ErrTooLarge)
	}
	accounted(t, s)
}

func TestOneProcessAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, one(mib))
	if _, err := Open(Config{Dir: dir, Limits: one(mib)}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second store over the folder: %v, want a refusal", err)
	}
	s.Close()
	again, err := Open(Config{Dir: dir, Limits: one(mib)})
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if _, err := Open(Config{Dir: filepath.Join(dir, "no", "such")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder in a folder that is not there: %v, want %v", err, fs.ErrNotExist)
	}
}

func TestHeaderIsOfOneObject(t *testing.T) {
	t.Parallel()
	for _, of := range []header{{length: 12, checksum: 34}, {length: 12, checksum: 34, isLayout: true}} {
		h := of.encode("b", "key")
		if got, ok := decodeHeader(bytes.Clone(h), "b", "key"); !ok || got != of {
			t.Errorf("decoded %+v, %v, want %+v, true", got, ok, of)
		}
		if _, ok := decodeHeader(h, "b", "kez"); ok {
			t.Error("the header passes for another key")
		}
	}
}

func TestRename(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, one(mib))
	put(t, s, "b", "key-1", "one")
	put(t, s, "b", "key-2", "two")
	if err := s.Rename("b", "key-1", "key-2"); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if got := get(t, s, "b", "key-1") + " " + get(t, s, "b", "key-2"); got != "miss one" {
			t.Errorf("after renaming key-1: %q", got)
		}
		accounted(t, s)
	}
	check()
	s.Close()
	s = open(t, dir, one(mib))
	check()
	if err := s.Rename("b", "key-1", "key-3"); !errors.Is(err, ErrMiss) {
		t.Errorf("what is not there: %v, want %v", err, ErrMiss)
	}
	if err := s.Rename("b", "key-2", "key"); err == nil {
		t.Error("a key of another length is taken")
	}
}
