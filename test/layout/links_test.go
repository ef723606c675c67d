// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	linkPattern    = regexp.MustCompile(`\]\(([^()\s]*)(?: "[^"]*")?\)`)
	codePattern    = regexp.MustCompile("`+[^`]*`+")
	headingPattern = regexp.MustCompile(`^ {0,3}#{1,6} +(.*?)[ #]*$`)
	pagePattern    = regexp.MustCompile(`\bdocs/(?:adr/|reference/)?[\w-]+\.md(?:#[\w-]+)?`)
)

// repositoryURL begins the addresses of the repository's own files, which are checked like relative links.
var repositoryURL = regexp.MustCompile(`^https://github\.com/kubeflow/datacache/(?:blob|tree|edit)/main/`)

// TestLinksOfPages checks every link of every Markdown file: that the file in the repository exists, and that the page has the heading.
// Of addresses elsewhere it checks the form alone.
func TestLinksOfPages(t *testing.T) {
	links := 0
	for _, page := range filesOf(t, ".md") {
		for _, link := range linksOf(readFile(t, page)) {
			links++
			if err := checkLink(page, link.target); err != nil {
				t.Errorf("%s:%d: %s: %v", page, link.line, link.target, err)
			}
		}
	}
	if links < 100 {
		t.Errorf("found %d links, want at least 100: is the pattern right?", links)
	}
}

// TestPagesNamedInCode checks that the pages of docs that code, comments and messages name exist, and have the headings.
func TestPagesNamedInCode(t *testing.T) {
	names := 0
	for _, ext := range []string{".go", ".py", ".yaml", ".sh", ".toml", "Makefile", ".tpl", ".txt"} {
		for _, file := range filesOf(t, ext) {
			if file == "test/layout/links_test.go" {
				continue // it names pages that must not exist
			}
			for i, line := range strings.Split(readFile(t, file), "\n") {
				for _, page := range pagePattern.FindAllString(line, -1) {
					if page == "docs/hosts.md" {
						continue // containerd's
					}
					names++
					if err := checkLink("README.md", page); err != nil {
						t.Errorf("%s:%d: %s: %v", file, i+1, page, err)
					}
				}
			}
		}
	}
	if names < 20 {
		t.Errorf("found %d names of pages, want at least 20: is the pattern right?", names)
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	page := "# One\n## Two words, `code`\n## Two words, `code`\n```\n[no](link)\n```\n`[no](link)` [a](b.md) [c\nd](e.md#f \"t\")\n"
	got := linksOf(page)
	want := []pageLink{{line: 7, target: "b.md"}, {line: 8, target: "e.md#f"}}
	if !slices.Equal(got, want) {
		t.Errorf("links %v, want %v", got, want)
	}
	if got, want := anchorsOf(page), []string{"one", "two-words-code", "two-words-code-1"}; !slices.Equal(got, want) {
		t.Errorf("anchors %q, want %q", got, want)
	}
	for _, target := range []string{
		"docs/gone.md", "docs/use.md#gone", "#gone", "/docs/use.md", "../outside.md", "Makefile#L1", "http://", "ftp://host/file", "",
		"https://github.com/kubeflow/datacache/blob/main/docs/gone.md",
	} {
		if checkLink("README.md", target) == nil {
			t.Errorf("%q: no error", target)
		}
	}
}

// pageLink is a link of a page: the line of its target, from 1, and the target.
type pageLink struct {
	line   int
	target string
}

// linksOf returns the inline links of a Markdown text, without those in code.
func linksOf(text string) []pageLink {
	var links []pageLink
	forEachLine(text, func(number int, line string) {
		for _, match := range linkPattern.FindAllStringSubmatch(codePattern.ReplaceAllString(line, ""), -1) {
			links = append(links, pageLink{line: number, target: match[1]})
		}
	})
	return links
}

// anchorsOf returns the anchors of a Markdown text's headings as GitHub makes them: in lower case, without punctuation, with hyphens for
// spaces, and numbered from the second of the same name on.
func anchorsOf(text string) []string {
	var anchors []string
	seen := map[string]int{}
	forEachLine(text, func(_ int, line string) {
		match := headingPattern.FindStringSubmatch(line)
		if match == nil {
			return
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linkPattern.ReplaceAllString(match[1], "]"))
		seen[anchor]++
		if n := seen[anchor]; n > 1 {
			anchor = fmt.Sprintf("%s-%d", anchor, n-1)
		}
		anchors = append(anchors, anchor)
	})
	return anchors
}

// forEachLine calls do with each line of a Markdown text that is not in a fenced block of code, and its number from 1.
func forEachLine(text string, do func(number int, line string)) {
	fence := ""
	for i, line := range strings.Split(text, "\n") {
		start := strings.TrimSpace(line)
		switch {
		case fence != "":
			if strings.HasPrefix(start, fence) && strings.Trim(start, fence[:1]) == "" {
				fence = ""
			}
		case strings.HasPrefix(start, "```") || strings.HasPrefix(start, "~~~"):
			fence = start[:len(start)-len(strings.TrimLeft(start, start[:1]))]
		default:
			do(i+1, line)
		}
	}
}

// checkLink returns what is wrong with a link of a page; paths are relative to the repository's root.
func checkLink(page, target string) error {
	if below := repositoryURL.ReplaceAllString(target, ""); below != target {
		page, target = "README.md", below
	}
	to, err := url.Parse(target)
	switch {
	case err != nil:
		return err
	case to.Scheme == "https" || to.Scheme == "http":
		if to.Host == "" {
			return fmt.Errorf("has no host")
		}
		return nil
	case to.Scheme != "":
		return fmt.Errorf("scheme %q, want https or a relative path", to.Scheme)
	case to.Path == "" && to.Fragment == "":
		return fmt.Errorf("is empty")
	case strings.HasPrefix(to.Path, "/"):
		return fmt.Errorf("must be relative to the page")
	}
	file := page
	if to.Path != "" {
		file = path.Join(path.Dir(page), to.Path)
	}
	if !filepath.IsLocal(file) {
		return fmt.Errorf("is outside of the repository")
	}
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		return fmt.Errorf("there is no %s", file)
	}
	if to.Fragment == "" {
		return nil
	}
	if path.Ext(file) != ".md" {
		return fmt.Errorf("only pages have headings")
	}
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return err
	}
	if anchors := anchorsOf(string(text)); !slices.Contains(anchors, to.Fragment) {
		return fmt.Errorf("%s has no such heading; it has #%s", file, strings.Join(anchors, " #"))
	}
	return nil
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
