// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/kubeflow/datacache"
)

// source is a parsed Go file of the module.
type source struct {
	path  string // relative to the repository's root, with slashes
	text  string
	ast   *ast.File
	lines int
}

func (s source) isTest() bool      { return strings.HasSuffix(s.path, "_test.go") }
func (s source) isTestHelp() bool  { return strings.HasPrefix(s.path, "test/kit/") }
func (s source) isGenerated() bool { return ast.IsGenerated(s.ast) }
func (s source) dir() string       { return path.Dir(s.path) }

// imports returns the import paths of the file.
func (s source) imports(t *testing.T) []string {
	t.Helper()
	paths := make([]string, 0, len(s.ast.Imports))
	for _, spec := range s.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatalf("%s: import %s: %v", s.path, spec.Path.Value, err)
		}
		paths = append(paths, p)
	}
	return paths
}

// repository parses every Go file of the repository, sorted by path.
func repository(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	set := token.NewFileSet()
	var files []source
	for _, name := range filesOf(t, ".go") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		tree, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, source{path: name, text: string(text), ast: tree, lines: strings.Count(string(text), "\n")})
	}
	if len(files) == 0 {
		t.Fatal("no Go file found: is the root right?")
	}
	return set, files
}

// filesOf lists the repository's files with the extension, sorted. Hidden folders and testdata are skipped.
func filesOf(t *testing.T, ext string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() && name != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin") {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(base, ext) {
			return nil
		}
		below, err := filepath.Rel(root, name)
		names = append(names, filepath.ToSlash(below))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}
