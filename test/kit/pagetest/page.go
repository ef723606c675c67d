// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pagetest keeps the pages of docs/reference equal to what the programs say of themselves.
package pagetest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what is generated in place of comparing it") //nolint:forbidigo // a flag of test binaries

// Update reports whether the tests run with -update.
func Update() bool { return *update }

// Check compares the file with the text, or writes it with -update.
func Check(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: run make generate", err)
	}
	if string(have) != text {
		t.Errorf("%s is out of date: run make generate\n%s", file, cmp.Diff(string(have), text))
	}
}

// Prose returns text as Markdown on one line, for a paragraph or the cell of a table: characters that Markdown or HTML would interpret
// are escaped.
func Prose(text string) string {
	return prose.Replace(strings.Join(strings.Fields(text), " "))
}

var prose = strings.NewReplacer("\\", "\\\\", "<", "&lt;", "|", "\\|", "*", "\\*", "_", "\\_", "`", "\\`", "[", "\\[", "{", "\\{")

// Code returns text as code, for the cell of a table: in backticks, or with what these can't hold there as HTML.
func Code(text string) string {
	if !strings.ContainsAny(text, "|`") {
		return "`" + text + "`"
	}
	return "<code>" + code.Replace(text) + "</code>"
}

var code = strings.NewReplacer("&", "&amp;", "<", "&lt;", "|", "&#124;", "*", "&#42;", "_", "&#95;", "`", "&#96;", "[", "&#91;", "]", "&#93;", "\\", "&#92;")
