// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// mostForBombs bounds all allocations while a decompression bomb is opened.
const mostForBombs = 512 << 20

func TestMetadataBombs(t *testing.T) {
	deep := `{"format-version": 2, "schemas": [{"type": "struct", "fields": [{"id": 1, "name": "a", "required": false, "type": ` +
		strings.Repeat(`{"type": "list", "element-id": 1, "element-required": false, "element": `, 8000) + `"int"` + strings.Repeat("}", 8000) + `}]}]}`
	spaces := func(w io.WriteCloser, n int) {
		block := bytes.Repeat([]byte(" "), 1<<20)
		for range n {
			if _, err := w.Write(block); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, write := range map[string]func(f *os.File){
		"large.metadata.json":   func(f *os.File) { _ = f.Truncate(100 << 20) },
		"deep.metadata.json":    func(f *os.File) { _, _ = io.WriteString(f, deep) },
		"bomb.gz.metadata.json": func(f *os.File) { spaces(gzip.NewWriter(f), 100) },
		"bomb.zstd.metadata.json": func(f *os.File) {
			z, err := zstd.NewWriter(f)
			if err != nil {
				t.Fatal(err)
			}
			spaces(z, 600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			write(f)
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = Open(t.Context(), newStore(), Location{Metadata: path}, Selection{})
			runtime.ReadMemStats(&after)
			if !errors.Is(err, errBound) || !strings.Contains(err.Error(), name) {
				t.Errorf("%v, want an error about the limit that names the file", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > mostForBombs {
				t.Errorf("%d bytes were allocated, want at most %d", took, mostForBombs)
			}
		})
	}
}

func TestCatalogBombs(t *testing.T) {
	for name, body := range map[string]string{
		"large": strings.Repeat(" ", maxMetadata+1),
		"deep":  `{"defaults": ` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}",
	} {
		for _, code := range []int{http.StatusOK, http.StatusUnauthorized} {
			catalog := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(code)
				_, _ = io.WriteString(w, body)
			}))
			_, err := Open(t.Context(), newStore(), Location{CatalogURI: catalog.URL, Namespace: "n", Table: "t"}, Selection{})
			catalog.Close()
			if !errors.Is(err, errBound) {
				t.Errorf("%s, status %d: %v", name, code, err)
			}
		}
	}
}

func TestAvroBombs(t *testing.T) {
	file := func(schema, codec string, rows int64, block []byte) []byte {
		sync := make([]byte, 16)
		out := appendAvroHeader([]avroEntry{{avroSchema, []byte(schema)}, {"avro.codec", []byte(codec)}})
		out = append(out, sync...)
		out = binary.AppendVarint(out, rows)
		out = append(binary.AppendVarint(out, int64(len(block))), block...)
		return append(out, sync...)
	}
	deflated := func(n int) []byte {
		var out bytes.Buffer
		w, _ := flate.NewWriter(&out, flate.BestSpeed)
		_, _ = w.Write(make([]byte, n))
		_ = w.Close()
		return out.Bytes()
	}
	const limit = 1 << 20
	for _, test := range []struct {
		name string
		file []byte
		over bool
	}{
		{"as engines write them", file(`{"type": "record"}`, "deflate", 10, deflated(1000)), false},
		{"a block that expands far", file(`{}`, "deflate", 10, deflated(limit+1)), true},
		{"a block of snappy that claims much", file(`{}`, "snappy", 10, binary.AppendUvarint(nil, 1<<46)), true},
		{"more rows than bytes", file(`{}`, "null", 1<<60, []byte("abc")), true},
		{"fewer rows than none", file(`{}`, "null", -1, []byte("abc")), true},
		{"a schema nested deep", file(strings.Repeat("[", 8000), "null", 1, []byte("abc")), true},
	} {
		if err := checkAvro(test.file, limit); errors.Is(err, errBound) != test.over || !test.over && err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	whole := file(`{}`, "null", 1, []byte("abc"))
	for n := range len(whole) {
		if err := checkAvro(whole[:n], limit); err == nil && n != len(whole)-len("abc")-2-16 { // a file without blocks is complete
			t.Errorf("cut off after %d of %d bytes, and no error", n, len(whole))
		}
	}
	for _, text := range []string{`"[[[["`, `["\"[[", {"a": "\\"}]`, ""} {
		if err := checkNesting([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := checkNesting(fmt.Appendf(nil, `{"a": %s`, strings.Repeat("[", maxNesting))); err == nil {
		t.Error("nested too deep, and no error")
	}
}
