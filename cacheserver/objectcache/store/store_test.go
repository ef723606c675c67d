// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
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

func TestReaderReadsRanges(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(mib))
	put(t, s, "b", "k", "0123456789")
	o, err := s.Get("b", "k")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for _, r := range []struct {
		first, length int64
		want          string
	}{{0, 10, "0123456789"}, {3, 4, "3456"}, {9, 1, "9"}, {10, 0, ""}, {0, 1, "0"}} {
		reader, err := o.Reader(r.first, r.length)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(reader); err != nil || string(got) != r.want {
			t.Errorf("%d bytes from %d = %q, %v, want %q", r.length, r.first, got, err, r.want)
		}
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

func TestDamageIsAMiss(t *testing.T) {
	t.Parallel()
	const data = "the quick brown fox jumps over the lazy dog"
	flip := func(at int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text[at] ^= 1
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	truncate := func(size int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	head := headerSize("b", "k")
	harms := map[string]func(t *testing.T, path string){
		"first byte":      flip(head),
		"last byte":       flip(head + int64(len(data)) - 1),
		"magic":           flip(0),
		"length":          flip(8),
		"checksum":        flip(16),
		"length of name":  flip(24),
		"header checksum": flip(32),
		"name":            flip(40),
		"cut":             truncate(head + 3),
		"cut header":      truncate(10),
		"empty":           truncate(0),
		"longer":          truncate(head + int64(len(data)) + 1),
		"gone":            func(_ *testing.T, path string) { os.Remove(path) },
	}
	for name, harm := range harms {
		for _, restart := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", restart"}[restart], func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				s := open(t, dir, one(mib))
				s.verifyEvery = -1 // change times are coarser than this test's steps
				put(t, s, "b", "k", data)
				harm(t, fileOf(s, "b", "k"))
				if restart {
					s.Close()
					s = open(t, dir, one(mib))
				}
				if got := get(t, s, "b", "k"); got != "miss" {
					t.Fatalf("got %q, want a miss", got)
				}
				if left := files(t, dir); len(left) > 0 {
					t.Errorf("damaged file is still there: %v", left)
				}
				if b := statsOf(t, s, "b"); b.Objects != 0 || b.Bytes != 0 {
					t.Errorf("after the miss: %+v, want nothing", b)
				}
				put(t, s, "b", "k", data)
				if got := get(t, s, "b", "k"); got != data {
					t.Errorf("put again: %q, want %q", got, data)
				}
			})
		}
	}
}

func TestAChangedFileIsVerifiedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(mib))
	put(t, s, "b", "k", "data")
	if got := get(t, s, "b", "k"); got != "data" {
		t.Fatalf("%q, want %q", got, "data")
	}
	path := fileOf(s, "b", "k")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-1] ^= 1
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// Repeat until the file system's clock has advanced.
	for deadline := time.Now().Add(time.Minute); ; {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if stampOf(after) != stampOf(before) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the file's change time stands still")
		}
	}
	if got := get(t, s, "b", "k"); got != "miss" {
		t.Errorf("%q, want a miss", got)
	}
	if b := statsOf(t, s, "b"); b.Damaged != 1 {
		t.Errorf("%d objects damaged, want 1", b.Damaged)
	}
}

func TestAnObjectBeingReadIsNotCut(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(3*mib))
	data := strings.Repeat("x", 2*mib)
	put(t, s, "b", "k", data)
	o, err := s.Get("b", "k")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	put(t, s, "b", "other", strings.Repeat("y", 2*mib))
	if got := get(t, s, "b", "k"); got != "miss" {
		t.Fatal("the first object was not evicted: the test shows nothing")
	}
	if got := read(t, o); got != data {
		t.Errorf("%d bytes read, want all %d", len(got), len(data))
	}
}

func TestScan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, Limits{Total: mib, Quotas: map[string]int64{"b": mib, "leaving": mib}})
	keys := []string{"oldest", "older", "newer", "newest"}
	for i, key := range keys {
		put(t, s, "b", key, key)
		at := time.Unix(1e9+int64(i), 0)
		if err := os.Chtimes(fileOf(s, "b", key), at, at); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s, "leaving", "k", "data")
	w, err := s.Create("b", "half", -1) // as a killed process leaves it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Dir(fileOf(s, "b", "oldest"))
	for _, stray := range []string{"README", "zz", strings.Repeat("0", 29), strings.Repeat("0", 64)} {
		if err := os.WriteFile(filepath.Join(folder, stray), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()

	size := headerSize("b", "newer") + int64(len("newer"))
	s = open(t, dir, one(mib))
	if b := statsOf(t, s, "b"); b.Objects != 4 {
		t.Errorf("%d objects, want 4", b.Objects)
	}
	if got := len(files(t, dir)); got != len(keys)+4 {
		t.Errorf("%d files, want the objects and 4 strays: %v", got, files(t, dir))
	}
	s.SetLimits(one(2*size + 4))
	got := map[string]string{}
	for _, key := range keys {
		got[key] = get(t, s, "b", key)
	}
	want := map[string]string{"oldest": "miss", "older": "miss", "newer": "newer", "newest": "newest"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after shrinking to two objects:\n%s", diff)
	}
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
	h := encodeHeader("b", "key", 12, 34)
	if length, checksum, ok := decodeHeader(bytes.Clone(h), "b", "key"); !ok || length != 12 || checksum != 34 {
		t.Errorf("decoded %d, %d, %v, want 12, 34, true", length, checksum, ok)
	}
	if _, _, ok := decodeHeader(h, "b", "kez"); ok {
		t.Error("the header passes for another key")
	}
}

// TestForeignFilesAreAnError checks that Scan reports files that no store creates: opening one could block, or lead outside the
// folder.
func TestForeignFilesAreAnError(t *testing.T) {
	object := "objects/b/ab/" + strings.Repeat("0", 30)
	pipe := func(path string) error { return unix.Mkfifo(path, 0o600) }
	link := func(to string) func(string) error { return func(path string) error { return os.Symlink(to, path) } }
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "kept"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		at   string
		make func(path string) error
	}{
		"a pipe as an object":      {object, pipe},
		"a pipe of another name":   {"objects/b/ab/pipe", pipe},
		"a link as an object":      {object, link("/dev/zero")},
		"a dangling link":          {object, link("nowhere")},
		"a pipe as a folder":       {"objects/b/ab", pipe},
		"a link as a folder":       {"objects/b/ab", link(outside)},
		"a link as a bucket":       {"objects/b", link(outside)},
		"a link as all objects":    {"objects", link(outside)},
		"a link as tmp":            {"tmp", link(outside)},
		"a file in place of a dir": {"objects/b/ab", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(test.at)), 0o700), test.make(filepath.Join(dir, test.at))); err != nil {
				t.Fatal(err)
			}
			s, err := Open(Config{Dir: dir, Limits: one(mib)})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Scan(t.Context()); err == nil || !strings.Contains(err.Error(), test.at) || !errors.Is(err, errForeign) {
				t.Errorf("scan says %v, want an error that names %s", err, test.at)
			}
			if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
				t.Errorf("what the link leads to: %v", err)
			}
		})
	}
}

// TestForeignFilesAreMissed checks that something else in place of an object's file is a miss while the store is running, and that
// nothing blocks on it.
func TestForeignFilesAreMissed(t *testing.T) {
	s := open(t, t.TempDir(), one(mib))
	for name, make := range map[string]func(path string) error{
		"pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":   func(path string) error { return os.Symlink("/dev/zero", path) },
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		put(t, s, "b", name, "data")
		path := s.path("b", identify("b", name))
		if err := errors.Join(os.Remove(path), make(path)); err != nil {
			t.Fatal(err)
		}
		if got := get(t, s, "b", name); got != "miss" {
			t.Errorf("%s: %q", name, got)
		}
		if name != "folder" {
			put(t, s, "b", name, "again")
			if got := get(t, s, "b", name); got != "again" {
				t.Errorf("%s, stored anew: %q", name, got)
			}
		}
	}
}
