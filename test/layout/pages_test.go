// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const maxCode = 90 // columns of code that a page of the site and GitHub show without a scroll bar

// printedByCommands are the pages whose blocks without a language may be wider: they are what a command prints.
var printedByCommands = map[string]string{
	"docs/benchmarks.md": "make bench and make bench NAME=loader",
	"docs/kubectl.md":    "kubectl datacache: TestExamplesOfTheDocs compares them",
}

// pagesForReaders returns the pages that somebody wrote, without those of docs/reference, which are made of help texts.
func pagesForReaders(t *testing.T) []string {
	t.Helper()
	pages := []string{"README.md", "CONTRIBUTING.md", "python/README.md", "runtimes/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/adr/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil || len(found) == 0 {
			t.Fatalf("found no %s: %v", pattern, err)
		}
		for _, file := range found {
			pages = append(pages, path.Join(path.Dir(pattern), filepath.Base(file)))
		}
	}
	return pages
}

// TestCodeFitsThePage checks that the blocks of code of pages can be read without scrolling sideways.
func TestCodeFitsThePage(t *testing.T) {
	lines := 0
	for _, page := range pagesForReaders(t) {
		text := readFile(t, page)
		prose := map[int]bool{}
		forEachLine(text, func(number int, _ string) { prose[number] = true })
		language := ""
		for i, line := range strings.Split(text, "\n") {
			if start := strings.TrimSpace(line); prose[i] && !prose[i+1] { // the fence before the block
				language = strings.TrimLeft(start, "`~")
			}
			if prose[i+1] || language == "" && printedByCommands[page] != "" {
				continue
			}
			lines++
			if width := utf8.RuneCountInString(line); width > maxCode {
				t.Errorf("%s:%d: code of %d columns, at most %d fit the page: put comments above, break the line", page, i+1, width, maxCode)
			}
		}
	}
	if lines < 500 {
		t.Errorf("found %d lines of code, want at least 500: is the pattern right?", lines)
	}
}

var pageLinkPattern = regexp.MustCompile(`\[([^\]]*)\]\(([^()\s#]*\.md)(?:#[^()\s]*)?\)`)

// TestLinksSayWhatTheyLeadTo checks that no link to a page has the name of its file as text.
func TestLinksSayWhatTheyLeadTo(t *testing.T) {
	links := 0
	for _, page := range filesOf(t, ".md") {
		text := readFile(t, page)
		for _, at := range pageLinkPattern.FindAllStringSubmatchIndex(text, -1) {
			links++
			if said := text[at[2]:at[3]]; strings.Contains(said, path.Base(text[at[4]:at[5]])) {
				t.Errorf("%s:%d: the link says %q: use the title of the page, or of the section", page, 1+strings.Count(text[:at[0]], "\n"), said)
			}
		}
	}
	if links < 100 {
		t.Errorf("found %d links to pages, want at least 100: is the pattern right?", links)
	}
}

var (
	testNamePattern = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
	pathPattern     = regexp.MustCompile("`((?:[\\w-]+/)+[\\w.-]+)`")
)

// TestPageOfAdditions checks that the files, folders and tests that docs/adding.md names exist.
func TestPageOfAdditions(t *testing.T) {
	page := readFile(t, "docs/adding.md")
	var tests strings.Builder
	for _, file := range filesOf(t, "_test.go") {
		tests.WriteString(readFile(t, file))
	}
	names := testNamePattern.FindAllString(page, -1)
	for _, name := range names {
		if !strings.Contains(tests.String(), "func "+name+"(") {
			t.Errorf("docs/adding.md names the test %s, which does not exist", name)
		}
	}
	paths := pathPattern.FindAllStringSubmatch(page, -1)
	for _, at := range paths {
		if _, err := os.Stat(filepath.Join(root, at[1])); err != nil && !strings.HasSuffix(at[1], "/NAME") {
			t.Errorf("docs/adding.md names %s, which does not exist", at[1])
		}
	}
	if len(names) < 20 || len(paths) < 20 {
		t.Errorf("found %d tests and %d paths, want at least 20 of each: are the patterns right?", len(names), len(paths))
	}
}

const maxReadme = 800 // words

// TestReadme checks that the first page can be read in a few minutes, as more belongs to a page of its own, and that it gives the two commands that
// are all that a newcomer needs.
func TestReadme(t *testing.T) {
	text := readFile(t, "README.md")
	if words := len(strings.Fields(text)); words > maxReadme {
		t.Errorf("README.md has %d words, at most %d are read: move some to a page of docs", words, maxReadme)
	}
	if !strings.Contains(text, "\nmake demo\nmake test\n") {
		t.Error("README.md does not give the two commands that install, show and test everything: make demo, make test")
	}
}
