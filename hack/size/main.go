// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command size prints how large the product's Go code is, and where: lines of code by room, the longest functions and files, the types
// with the most methods, the references between a package's files that go round in circles, and how often a TrainJob's walk comes back.
//
//	size [-comments N] [-seed S] [BINARY...]
//
// Lines of code are those that hold more than blanks and comments, of files that are neither tests nor generated, outside test and hack.
// A room is a package. With -comments it prints N comments besides, drawn by the seed, to be read by somebody who has to judge them. It
// runs in the repository's root.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	comments := flag.Int("comments", 0, "comments to draw")
	seed := flag.Uint64("seed", 1, "what decides which")
	flag.Parse()
	h := &house{fset: token.NewFileSet(), packages: map[string][]*file{}, rooms: map[string]int{}, methods: map[string]int{}}
	if err := filepath.WalkDir(".", h.visit); err != nil {
		log.Fatal(err)
	}
	h.print()
	for _, path := range flag.Args() {
		info, err := os.Stat(path)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-60s %8.1f MB\n", path, float64(info.Size())/1e6)
	}
	h.draw(*comments, *seed)
}

// house is the product's code.
type house struct {
	fset      *token.FileSet
	packages  map[string][]*file // by folder
	rooms     map[string]int     // lines
	methods   map[string]int     // by folder and type
	functions []entry
	comments  []string
}

// file is a file of a package, with the names it declares for others and those it takes from them.
type file struct {
	path     string
	parsed   *ast.File
	lines    int
	declares map[string]bool
	uses     []string
}

// entry is a thing that has a size.
type entry struct {
	name string
	size int
}

func (h *house) visit(path string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if d.IsDir() {
		if name := d.Name(); path != "." && (strings.HasPrefix(name, ".") || slices.Contains([]string{"test", "hack", "bin", "python", "testdata"}, name)) {
			return fs.SkipDir
		}
		return nil
	}
	if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
		return nil
	}
	parsed, err := parser.ParseFile(h.fset, path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	if !ast.IsGenerated(parsed) {
		return h.add(path, parsed)
	}
	return nil
}

func (h *house) add(path string, parsed *ast.File) error {
	code, err := h.codeLines(path)
	if err != nil {
		return err
	}
	folder := filepath.Dir(path)
	f := &file{path: path, parsed: parsed, declares: map[string]bool{}}
	for _, has := range code {
		if has {
			f.lines++
		}
	}
	h.rooms[folder] += f.lines
	h.packages[folder] = append(h.packages[folder], f)
	for _, name := range parsed.Unresolved {
		f.uses = append(f.uses, name.Name)
	}
	for name := range parsed.Scope.Objects {
		f.declares[name] = true
	}
	for _, decl := range parsed.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		size := 0
		for line := h.fset.Position(fn.Pos()).Line; line <= h.fset.Position(fn.End()).Line; line++ {
			if code[line] {
				size++
			}
		}
		h.functions = append(h.functions, entry{fmt.Sprintf("%s: %s", path, fn.Name), size})
		if fn.Recv != nil {
			h.methods[folder+"."+receiver(fn.Recv.List[0].Type)]++
		}
	}
	for _, group := range parsed.Comments {
		if text := strings.TrimSpace(group.Text()); len(text) > 20 && !strings.HasPrefix(text, "Copyright") {
			h.comments = append(h.comments, fmt.Sprintf("%s\n    %s", h.fset.Position(group.Pos()), strings.ReplaceAll(text, "\n", "\n    ")))
		}
	}
	return nil
}

// codeLines returns which lines of the file hold code, by line number.
func (h *house) codeLines(path string) (map[int]bool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	code := map[int]bool{}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		code[i+1] = line != "" && !strings.HasPrefix(line, "//")
	}
	return code, nil
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return "?"
}

func (h *house) print() {
	total, files := 0, []entry(nil)
	for _, lines := range h.rooms {
		total += lines
	}
	circles := []entry(nil)
	for folder, package_ := range h.packages {
		for _, f := range package_ {
			files = append(files, entry{f.path, f.lines})
		}
		circles = append(circles, entry{folder, circular(package_)})
	}
	fmt.Printf("%d lines of code, %d packages, %d files, %d functions\n", total, len(h.packages), len(files), len(h.functions))
	fmt.Printf("median file %d lines, median function %d\n", median(files), median(h.functions))
	top("rooms", 25, entries(h.rooms))
	top("longest files", 5, files)
	top("longest functions", 5, h.functions)
	top("types by methods", 8, entries(h.methods))
	top("references between files of a package that are part of a circle", 8, circles)
	top("times that a TrainJob's walk comes back to a file that it had left, by where it enters", len(doors), h.walks())
}

func entries(sizes map[string]int) []entry {
	var all []entry
	for name, size := range sizes {
		all = append(all, entry{name, size})
	}
	return all
}

func median(all []entry) int {
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.size, b.size) })
	return all[len(all)/2].size
}

func top(title string, n int, all []entry) {
	slices.SortFunc(all, func(a, b entry) int { return cmp.Or(cmp.Compare(b.size, a.size), strings.Compare(a.name, b.name)) })
	fmt.Println("\n" + title)
	for _, e := range all[:min(n, len(all))] {
		fmt.Printf("%-75s %6d\n", e.name, e.size)
	}
}

// circular counts the pairs of files (a, b) where a names something that b declares and b leads back to a. Methods don't count.
func circular(package_ []*file) (count int) {
	edges := map[*file]map[*file]bool{}
	for _, from := range package_ {
		edges[from] = map[*file]bool{}
		for _, to := range package_ {
			if from != to && slices.ContainsFunc(from.uses, func(name string) bool { return to.declares[name] }) {
				edges[from][to] = true
			}
		}
	}
	for from := range edges {
		for to := range edges[from] {
			if leads(edges, to, from, map[*file]bool{}) {
				count++
			}
		}
	}
	return count
}

func leads(edges map[*file]map[*file]bool, from, to *file, seen map[*file]bool) bool {
	if from == to {
		return true
	}
	seen[from] = true
	for next := range maps.Keys(edges[from]) {
		if !seen[next] && leads(edges, next, to, seen) {
			return true
		}
	}
	return false
}

func (h *house) draw(n int, seed uint64) {
	source := rand.New(rand.NewPCG(seed, seed))
	for i, at := range source.Perm(len(h.comments)) {
		if i == n {
			return
		}
		fmt.Printf("\n%d. %s\n", i+1, h.comments[at])
	}
}
