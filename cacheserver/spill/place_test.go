// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// TestFilesAreBoundToTheirPlace opens files that were written for another split, node or plan, or by a release that did not store the place.
func TestFilesAreBoundToTheirPlace(t *testing.T) {
	d, _, sealed, name := written(t)
	file, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(d.Path(), "plan", "3", "8.rows")
	tests := []struct {
		name, as, want string
		in             *Dir
		plan           string
		split          int
		file           []byte
	}{
		{"another split", other, "8.rows: written as plan/3/7.rows", d, "plan", 8, file},
		{"another node", filepath.Join(d.Path(), "plan", "4", "7.rows"), "4/7.rows: written as plan/3/7.rows", New(d.Path(), 4, 0), "plan", 7, file},
		{"another plan", filepath.Join(d.Path(), "other", "3", "7.rows"), "other/3/7.rows: written as plan/3/7.rows", d, "other", 7, file},
		{"an older release", name, "7.rows: written by an older release", d, "plan", 7, unplaced(t, file)},
		{"the same place", name, "", d, "plan", 7, file},
		{"a dataset of an older release", filepath.Join(d.Path(), "puts", "plan", "3", "7.rows"), "", d.Below("puts"), "plan", 7, unplaced(t, file)},
		{"a dataset of another put", filepath.Join(d.Path(), "puts", "plan", "3", "7.rows"), "puts/plan/3/7.rows: written as plan/3/8.rows", d.Below("puts"), "plan", 7, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := os.MkdirAll(filepath.Dir(test.as), 0o700); err != nil {
				t.Fatal(err)
			}
			if test.file == nil {
				f, err := d.Below("puts").Write("plan", 8, nil, sealed)
				if err == nil {
					err = errors.Join(f.Close(true), os.Rename(f.name, test.as))
				}
				if err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(test.as, test.file, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := test.in.Open(test.plan, test.split)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want == "":
				_ = f.Close(true)
			case err == nil || !strings.Contains(err.Error(), test.want):
				t.Errorf("Open: %v, want %q", err, test.want)
			}
		})
	}
	if d.Used() != 0 {
		t.Errorf("%d bytes in use", d.Used())
	}
}

// unplaced is a file as releases wrote it that did not store the place.
func unplaced(t *testing.T, file []byte) []byte {
	t.Helper()
	var head Head
	length := int(binary.LittleEndian.Uint64(file[8:]))
	from := len(file) - len(pages(length))
	if err := gob.NewDecoder(bytes.NewReader(file[from : from+length])).Decode(&head); err != nil {
		t.Fatal(err)
	}
	head.Place = ""
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(&head); err != nil {
		t.Fatal(err)
	}
	out := append(bytes.Clone(file[:from]), make([]byte, len(pages(buf.Len())))...)
	copy(out[from:], buf.Bytes())
	binary.LittleEndian.PutUint64(out[8:], uint64(buf.Len()))
	sum := xxh3.Hash128(buf.Bytes()).Bytes()
	copy(out[16:], sum[:])
	return out
}

// TestExchangedChunks exchanges the bytes of two chunks of a file: neither is accepted at the other's place.
func TestExchangedChunks(t *testing.T) {
	d, _, sealed, name := written(t)
	f, err := d.Open("plan", 7)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(true)
	raw, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	for i := range 2 {
		from := sealed.Chunks[1-i].Memory()
		if _, err := raw.WriteAt(from[:offheap.PageSize], f.Head().Chunks[i].offset); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if err := f.ReadChunk(i, pages(len(sealed.Chunks[i].Memory()))); !errors.Is(err, ErrCorrupt) {
			t.Errorf("chunk %d: %v", i, err)
		}
	}
}

// TestForeignFiles has something else in place of a file, its temporary file or its note: no call waits, follows a link, or reads more than a note.
func TestForeignFiles(t *testing.T) {
	_, sealed := split(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for kind, place := range map[string]func(name string) error{
		"a pipe":          func(name string) error { return unix.Mkfifo(name, 0o600) },
		"a link":          func(name string) error { return os.Symlink(outside, name) },
		"a dangling link": func(name string) error { return os.Symlink("nowhere", name) },
		"a folder":        func(name string) error { return os.MkdirAll(filepath.Join(name, "x"), 0o700) },
		"a huge file":     func(name string) error { return errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 1<<40)) },
	} {
		for _, in := range []string{"7.rows", "7.rows.tmp", "note", "note.tmp"} {
			t.Run(kind+" in place of "+in, func(t *testing.T) {
				d := New(t.TempDir(), 3, 0)
				name := filepath.Join(d.Path(), "plan", "3", in)
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), place(name)); err != nil {
					t.Fatal(err)
				}
				foreign(t, d, name, sealed.Rows, func() (*File, error) { return d.Write("plan", 7, nil, sealed) })
				if text, err := os.ReadFile(outside); err != nil || string(text) != "kept" {
					t.Errorf("what a link leads to: %q, %v", text, err)
				}
			})
		}
	}
}

// foreign reads a file and a note and writes them. Each call succeeds, or its error names the file.
func foreign(t *testing.T, d *Dir, name string, rows int64, write func() (*File, error)) {
	t.Helper()
	named := func(what string, err error) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want an error that names %s", what, err, name)
		}
	}
	_, err := d.Open("plan", 7)
	named("Open", err)
	text, err := d.Noted("plan")
	named("Noted", err)
	if text != nil {
		t.Errorf("a note of %d bytes", len(text))
	}
	f, err := write()
	named("Write", err)
	if err == nil && (f.Close(true) != nil || f.Head().Rows != rows) {
		t.Error("the file is not complete")
	}
	if err = d.Note("plan", []byte("text")); err == nil {
		text, err = d.Noted("plan")
		if string(text) != "text" {
			t.Errorf("the note is %q", text)
		}
	}
	named("Note", err)
	if _, err := d.List(); err != nil {
		t.Errorf("List: %v", err)
	}
}

// TestNotes reads notes that were damaged, exchanged, or written by a release without a checksum.
func TestNotes(t *testing.T) {
	d := New(t.TempDir(), 3, 0)
	for _, plan := range []string{"a", "b"} {
		if err := d.Note(plan, []byte(`{"of":"`+plan+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(d.Path(), "a", "3", "note")
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(filepath.Join(d.Path(), "b", "3", "note"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, want string
		note       []byte
	}{
		{"whole", `{"of":"a"}`, whole},
		{"of an older release", `{"of":"a"}`, []byte(`{"of":"a"}`)},
		{"of another plan", "", other},
		{"a flipped bit", "", bytes.Replace(whole, []byte("a"), []byte("c"), 1)},
		{"cut", "", whole[:len(whole)-1]},
		{"extended", "", append(bytes.Clone(whole), 0)},
	} {
		if err := os.WriteFile(name, test.note, 0o600); err != nil {
			t.Fatal(err)
		}
		text, err := d.Noted("a")
		if string(text) != test.want || test.want == "" && (err == nil || !strings.Contains(err.Error(), name)) {
			t.Errorf("%s: %q, %v", test.name, text, err)
		}
	}
}

// TestList finds the files of a node beside others, whatever their names are.
func TestList(t *testing.T) {
	d := New(t.TempDir(), 3, 0)
	for _, name := range []string{"a/3/0.rows", "a/3/10.rows", "a/3/9.rows", "a/3/07.rows", "a/3/7", "a/3/-1.rows", "a/3/+1.rows", "a/3/9223372036854775807.rows", "a/3/1.rows.tmp", "b/4/1.rows", "c/3", "stray"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(d.Path(), filepath.Dir(name)), 0o700), os.WriteFile(filepath.Join(d.Path(), name), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	found, err := d.List()
	if diff := cmp.Diff(map[string][]int{"a": {0, 9, 10}, "c": {}}, found); diff != "" || err == nil || !strings.Contains(err.Error(), "c/3") {
		t.Errorf("List: %v\n%s", err, diff)
	}
}
