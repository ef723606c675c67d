// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package icetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/twmb/avro"
	"github.com/twmb/avro/ocf"
)

// Avro is the decoded content of an Avro file: a manifest list or a manifest.
type Avro struct {
	Schema  map[string]any // the JSON
	Records []map[string]any
	Meta    map[string][]byte // other metadata of the file
}

// EditAvro changes an Avro file in place.
func EditAvro(tb testing.TB, name string, edit func(*Avro)) {
	tb.Helper()
	f := readAvro(tb, name)
	edit(f)
	f.write(tb, name)
}

// EditManifests changes every manifest of a table on disk that lists delete files, or every one that lists data files.
func (t *Table) EditManifests(deletes bool, edit func(*Avro)) {
	t.tb.Helper()
	edited := 0
	for _, name := range t.avroFiles() {
		f := readAvro(t.tb, name)
		if _, list := f.field("manifest_path"); list || (string(f.Meta["content"]) == "deletes") != deletes {
			continue
		}
		edit(f)
		f.write(t.tb, name)
		edited++
	}
	if edited == 0 {
		t.tb.Fatalf("icetest: %s has no such manifest", t.catalog.location)
	}
}

// EditLists changes the manifest list of every snapshot of a table on disk.
func (t *Table) EditLists(edit func(*Avro)) {
	t.tb.Helper()
	for _, name := range t.avroFiles() {
		f := readAvro(t.tb, name)
		if _, list := f.field("manifest_path"); list {
			edit(f)
			f.write(t.tb, name)
		}
	}
}

func (t *Table) avroFiles() []string {
	t.tb.Helper()
	names, err := filepath.Glob(filepath.Join(filepath.Dir(t.catalog.location), "*.avro"))
	t.check("list manifests", err)
	return names
}

// Files returns the data_file records of a manifest.
func (f *Avro) Files() []map[string]any {
	files := make([]map[string]any, len(f.Records))
	for i, r := range f.Records {
		files[i] = r["data_file"].(map[string]any)
	}
	return files
}

// Drop removes a field of the records from schema and records.
func (f *Avro) Drop(name string) {
	at, ok := f.field(name)
	if !ok {
		panic("icetest: no Avro field " + name)
	}
	f.Schema["fields"] = slices.Delete(f.Schema["fields"].([]any), at, at+1)
	for _, r := range f.Records {
		delete(r, name)
	}
}

// Optional allows null for a field of the records.
func (f *Avro) Optional(name string) {
	at, ok := f.field(name)
	if !ok {
		panic("icetest: no Avro field " + name)
	}
	field := f.Schema["fields"].([]any)[at].(map[string]any)
	if _, union := field["type"].([]any); !union {
		field["type"] = []any{"null", field["type"]}
	}
}

func (f *Avro) field(name string) (int, bool) {
	at := slices.IndexFunc(f.Schema["fields"].([]any), func(v any) bool { return v.(map[string]any)["name"] == name })
	return at, at >= 0
}

func readAvro(tb testing.TB, name string) *Avro {
	tb.Helper()
	f, err := decodeAvro(name)
	if err != nil {
		tb.Fatalf("icetest: read %s: %v", name, err)
	}
	return f
}

func decodeAvro(name string) (*Avro, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r, err := ocf.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	f := &Avro{Meta: map[string][]byte{}}
	for key, value := range r.Metadata() {
		if key != "avro.schema" && key != "avro.codec" {
			f.Meta[key] = value
		}
	}
	if err := json.Unmarshal(r.Metadata()["avro.schema"], &f.Schema); err != nil {
		return nil, err
	}
	for {
		var record map[string]any
		if err := r.Decode(&record); errors.Is(err, io.EOF) {
			return f, nil
		} else if err != nil {
			return nil, err
		}
		f.Records = append(f.Records, record)
	}
}

func (f *Avro) write(tb testing.TB, name string) {
	tb.Helper()
	if err := f.encode(name); err != nil {
		tb.Fatalf("icetest: write %s: %v", name, err)
	}
}

func (f *Avro) encode(name string) error {
	text, err := json.Marshal(f.Schema)
	if err != nil {
		return err
	}
	schema, err := avro.Parse(string(text))
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w, err := ocf.NewWriter(&out, schema, ocf.WithMetadata(f.Meta), ocf.WithSchema(string(text)))
	if err != nil {
		return err
	}
	for _, r := range f.Records {
		if err := w.Encode(r); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, out.Bytes(), 0o600)
}
