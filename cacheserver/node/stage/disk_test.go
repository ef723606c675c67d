// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"bytes"
	"encoding/hex"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/test/kit/disktest"
)

// stored is a stage of data node 1 of 2 with files in a folder, and its log.
func stored(t *testing.T, dir string) (s *Stage, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	s = New(Config{
		Node: 1, Budget: offheap.NewBudget(1 << 30), Signer: protocol.NewSigner([]byte("key")), Log: slog.New(slog.NewTextHandler(log, nil)),
		Gone: func(string) {}, Disk: spill.New(dir, 1, 0).Below("puts"),
	})
	t.Cleanup(s.Close)
	return s, log
}

// fillFolder puts two datasets of two parts each, and two parts of a put that is not published, into a folder. It returns the hash of each dataset.
func fillFolder(t *testing.T, dir string) map[string]string {
	t.Helper()
	s, _ := stored(t, dir)
	acknowledge(t, s)
	want := map[string]string{}
	for i, id := range []string{"first", "second", "open"} {
		s.Open(peer.Put{ID: id, Name: id, Parts: 4, Nodes: 2, Schema: rows.SchemaHeader(schema)})
		ticket, err := s.cfg.Signer.Sign(protocol.PutTicket{Put: id, Parts: 4, Nodes: 2})
		if err != nil {
			t.Fatal(err)
		}
		var parts []protocol.PutPart
		for part := 2; part < 4; part++ {
			from := 1000*i + 100*part
			parts = append(parts, put1(t, s, write(t, command(ticket, part, 1), batch(t, from, from+100))).PutPart)
		}
		if id == "open" {
			continue
		}
		s.Publish(peer.Publish{ID: id, As: peer.Publication{Fingerprint: id, Rows: 200}, Parts: parts})
		s.Settle(id)
		want[id] = hashOf(t, s.Find(id).Layout, s.Find(id).Rows)
	}
	s.Close()
	return want
}

// hashOf is the hash of rows.
func hashOf(t *testing.T, layout *rows.Layout, r *rows.Rows) string {
	t.Helper()
	content := layout.NewContent()
	for batch, err := range r.Records(layout.All(), 0, r.Len()) {
		if err != nil {
			t.Fatal(err)
		}
		content.Add(batch)
	}
	sum := content.Sum()
	return hex.EncodeToString(sum[:])
}

// TestFilesOfPutsAreRestored restarts a stage, also with files of a release that did not store their places.
func TestFilesOfPutsAreRestored(t *testing.T) {
	dir := t.TempDir()
	want := fillFolder(t, dir)
	s, log := stored(t, dir)
	s.Restore()
	for id, hash := range want {
		if has := s.Find(id); has == nil || has.Fingerprint != id || hashOf(t, has.Layout, has.Rows) != hash {
			t.Errorf("dataset %s: %+v\n%s", id, has, log)
		}
	}
	if got := len(s.puts["open"].parts); got != 2 {
		t.Errorf("%d parts of a put that is not published, want 2", got)
	}
}

// TestDamagedFilesOfPuts restarts a stage whose files were damaged, exchanged, or replaced by something else. What it has after that are the rows that were
// put; what it does not have it reports with the name of a file.
func TestDamagedFilesOfPuts(t *testing.T) {
	for _, way := range disktest.Ways() {
		t.Run(way, func(t *testing.T) {
			disktest.Rounds(t, 3, func(t *testing.T, r *rand.Rand) { damagedPuts(t, r, way) })
		})
	}
}

func damagedPuts(t *testing.T, r *rand.Rand, way string) {
	dir := t.TempDir()
	want := fillFolder(t, dir)
	files := disktest.Files(t, dir)
	file := files[r.IntN(len(files))]
	disktest.Damage(t, r, way, file, files)
	s, log := stored(t, dir)
	s.Restore()
	for id, hash := range want {
		has := s.Find(id)
		if has != nil && (has.Fingerprint != id || has.Put.Name != id || hashOf(t, has.Layout, has.Rows) != hash) {
			t.Errorf("%s: %s: dataset %s has other rows than were put", file, way, id)
		}
		if has == nil && way != "missing" && !strings.Contains(log.String(), file) {
			t.Errorf("%s: %s: dataset %s is lost, and the log does not name the file:\n%s", file, way, id, log)
		}
	}
	for id, p := range s.puts {
		for part, attempts := range p.parts {
			for _, a := range attempts {
				all, err := rows.NewRows(p.layout, a.chunks)
				if err != nil {
					t.Fatal(err)
				}
				if got := hashOf(t, p.layout, all); got != a.Hash || a.Part != part {
					t.Errorf("%s: %s: part %d of %s has the hash %s, want %s", file, way, part, id, got, a.Hash)
				}
			}
		}
	}
	// Parts can be put afterwards, whatever files are left in the folder.
	acknowledge(t, s)
	s.Open(peer.Put{ID: "open", Name: "open", Parts: 4, Nodes: 2, Schema: rows.SchemaHeader(schema)})
	ticket, err := s.cfg.Signer.Sign(protocol.PutTicket{Put: "open", Parts: 4, Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	in := &stream{ctx: t.Context(), messages: write(t, command(ticket, 2, 2), batch(t, 7, 17))}
	if err := s.Receive(in); err != nil && !strings.Contains(err.Error(), dir) {
		t.Errorf("%s: %s: a part after it: %v", file, way, err)
	}
}

// TestOneFolderThatCantBeRead restores datasets beside a file, and a put whose folder is a file.
func TestOneFolderThatCantBeRead(t *testing.T) {
	dir := t.TempDir()
	want := fillFolder(t, dir)
	for _, name := range []string{"stray", "broken/1"} {
		path := filepath.Join(dir, "puts", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s, log := stored(t, dir)
	s.Restore()
	for id := range want {
		if s.Find(id) == nil {
			t.Errorf("dataset %s is lost", id)
		}
	}
	if !strings.Contains(log.String(), filepath.Join(dir, "puts", "broken", "1")) {
		t.Errorf("the log does not name the file:\n%s", log)
	}
}

// TestRecordOfAnotherPut restores a note that a release without checksums wrote for another put.
func TestRecordOfAnotherPut(t *testing.T) {
	dir := t.TempDir()
	fillFolder(t, dir)
	note := func(id string) string { return filepath.Join(dir, "puts", id, "1", "note") }
	for _, damage := range []func(text []byte) []byte{
		func([]byte) []byte { return nil },
		func(text []byte) []byte { return bytes.Replace(text, []byte(`"parts":4`), []byte(`"parts":0`), 1) },
	} {
		text, err := os.ReadFile(note("second"))
		if err != nil {
			t.Fatal(err)
		}
		text, _, _ = bytes.Cut(text, []byte("\n"))
		if changed := damage(bytes.Clone(text)); changed != nil {
			text = bytes.ReplaceAll(changed, []byte(`"id":"second"`), []byte(`"id":"first"`))
		}
		if err := os.WriteFile(note("first"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, log := stored(t, dir)
		s.Restore()
		if s.Find("first") != nil || !strings.Contains(log.String(), note("first")+" is of put") {
			t.Errorf("the dataset is there:\n%s", log)
		}
		s.Close()
	}
}
