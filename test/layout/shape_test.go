// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxFile     = 500 // lines, except in tests
	maxFunction = 60  // lines from the func keyword to the closing brace, except in tests

	copyright = "Copyright The Kubeflow Authors."
	license   = "SPDX-License-Identifier: Apache-2.0"
)

// longOnPurpose lists files ("path") and functions ("path: name") that may exceed the limits, each with the reason.
var longOnPurpose = map[string]string{}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	_, files := repository(t)
	sentences := map[string][]string{}
	for _, f := range files {
		if f.isTest() {
			continue
		}
		if _, known := sentences[f.dir()]; !known {
			sentences[f.dir()] = nil
		}
		if f.ast.Doc != nil {
			sentences[f.dir()] = append(sentences[f.dir()], f.ast.Doc.Text())
		}
		if f.ast.Doc == nil {
			continue
		}
		want := "Package " + f.ast.Name.Name + " "
		if f.ast.Name.Name == "main" {
			want = "Command " + path.Base(f.dir()) + " "
		}
		if !strings.HasPrefix(f.ast.Doc.Text(), want) {
			t.Errorf("%s: the package comment starts %.40q, want %q", f.path, f.ast.Doc.Text(), want)
		}
	}
	for dir, docs := range sentences {
		if len(docs) != 1 {
			t.Errorf("%s has %d package comments, want one sentence in one file", dir, len(docs))
		}
	}
}

func TestEveryFileHasItsHeader(t *testing.T) {
	_, files := repository(t)
	for _, f := range files {
		if !f.isGenerated() && !strings.HasPrefix(f.text, "// "+copyright+"\n// "+license+"\n") {
			t.Errorf("%s: starts without the two header lines", f.path)
		}
	}
	for _, name := range append(filesOf(t, ".py"), filesOf(t, ".sh")...) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		body := string(text)
		if strings.HasPrefix(body, "#!") {
			_, body, _ = strings.Cut(body, "\n")
		}
		if !strings.HasPrefix(body, "# "+copyright+"\n# "+license+"\n") {
			t.Errorf("%s: starts without the two header lines", name)
		}
	}
}

func TestNothingIsTooLong(t *testing.T) {
	set, files := repository(t)
	used := map[string]bool{}
	tooLong := func(what string, lines, most int) {
		if longOnPurpose[what] != "" {
			used[what] = true
			return
		}
		t.Errorf("%s has %d lines, at most %d are easy to read: split it, or list it in longOnPurpose with the reason", what, lines, most)
	}
	for _, f := range files {
		if f.isTest() || f.isTestHelp() || f.isGenerated() {
			continue
		}
		if f.lines > maxFile {
			tooLong(f.path, f.lines, maxFile)
		}
		for _, decl := range f.ast.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := set.Position(function.End()).Line - set.Position(function.Pos()).Line + 1
			if lines > maxFunction {
				tooLong(f.path+": "+function.Name.Name, lines, maxFunction)
			}
		}
	}
	for what := range longOnPurpose {
		if !used[what] {
			t.Errorf("longOnPurpose lists %s, which is not too long: take it out", what)
		}
	}
}

// TestModuleCanBeInstalled checks that go.mod has no replace or exclude directives, with which `go install
// github.com/kubeflow/datacache/cmd/cacheserver@VERSION` fails.
func TestModuleCanBeInstalled(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if word, _, _ := strings.Cut(line, " "); word == "replace" || word == "exclude" {
			t.Errorf("go.mod: %q: go install PACKAGE@VERSION would refuse the module", strings.TrimSpace(line))
		}
	}
}
