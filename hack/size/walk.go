// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/importer"
	"go/types"
	"log"
	"path"
	"slices"
	"strings"
)

// module is the import path of the repository's root, with a slash.
const module = "github.com/kubeflow/datacache/"

// doors are where a TrainJob enters: the methods that the API server's calls reach, and those that Trainer calls in the plugin.
var doors = []string{
	"webhook.mutator.Default", "webhook.validator.ValidateCreate", "plugin.decorated.NewObjects", "plugin.decorated.ValidateObjects",
}

// carriers are the types by which a TrainJob is handed on: itself, and what package request parses it into.
var carriers = []string{"trainer.TrainJob", "Job", "request.Job", "Request", "request.Request"}

// walk follows a TrainJob from a door into every function of the product that takes it, as a parameter or receiver of the type of a carrier.
// It takes all branches, in the order of the code. It enters a function each time that it is called, but follows its calls only once.
type walk struct {
	house   *house
	info    *types.Info
	bodies  map[types.Object]*ast.FuncDecl
	entered map[types.Object]bool
	files   []string // that it entered, in order; no two neighbours are equal
}

// returns is how often the walk came back to a file that it had left.
func (w *walk) returns() int {
	return len(w.files) - len(slices.Compact(slices.Sorted(slices.Values(w.files))))
}

func (w *walk) enter(function types.Object) {
	decl := w.bodies[function]
	if file := w.house.fset.Position(decl.Pos()).Filename; len(w.files) == 0 || w.files[len(w.files)-1] != file {
		w.files = append(w.files, file)
	}
	if !w.entered[function] {
		w.entered[function] = true
		ast.Inspect(decl.Body, w.visit)
	}
}

// visit follows a call, after those in its arguments.
func (w *walk) visit(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return true
	}
	for _, arg := range call.Args {
		ast.Inspect(arg, w.visit)
	}
	ast.Inspect(call.Fun, w.visit)
	var name *ast.Ident
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		name = fun
	case *ast.SelectorExpr:
		name = fun.Sel
	}
	if function := w.info.Uses[name]; w.bodies[function] != nil && carries(w.bodies[function]) {
		w.enter(function)
	}
	return false
}

func carries(decl *ast.FuncDecl) bool {
	fields := slices.Clone(decl.Type.Params.List)
	if decl.Recv != nil {
		fields = append(fields, decl.Recv.List...)
	}
	return slices.ContainsFunc(fields, func(f *ast.Field) bool {
		return slices.Contains(carriers, strings.TrimPrefix(types.ExprString(f.Type), "*"))
	})
}

// resolver type-checks the module's packages. Of other modules it knows no names, so that nothing has to be built: calls into them are not
// followed.
type resolver struct {
	house    *house
	info     *types.Info
	standard types.Importer
	packages map[string]*types.Package
}

// Import returns a package by its path.
func (r *resolver) Import(name string) (*types.Package, error) {
	if known := r.packages[name]; known != nil {
		return known, nil
	}
	folder, ours := strings.CutPrefix(name, module)
	switch {
	case ours:
		var files []*ast.File
		for _, f := range r.house.packages[folder] {
			files = append(files, f.parsed)
		}
		lenient := types.Config{Importer: r, Error: func(error) {}} // ignores unknown names: those of other modules
		r.packages[name], _ = lenient.Check(name, r.house.fset, files, r.info)
	case !strings.Contains(name, "."):
		return r.standard.Import(name)
	default:
		r.packages[name] = types.NewPackage(name, path.Base(name))
		r.packages[name].MarkComplete()
	}
	return r.packages[name], nil
}

// walks counts the returns of a TrainJob's walk from each door.
func (h *house) walks() []entry {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	r := &resolver{house: h, info: info, standard: importer.ForCompiler(h.fset, "source", nil), packages: map[string]*types.Package{}}
	for _, door := range doors {
		folder, _, _ := strings.Cut(door, ".")
		if _, err := r.Import(module + folder); err != nil {
			log.Fatal(err)
		}
	}
	bodies, methods := map[types.Object]*ast.FuncDecl{}, map[string]types.Object{}
	for folder, files := range h.packages {
		for _, f := range files {
			for _, decl := range f.parsed.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Body == nil || info.Defs[fn.Name] == nil {
					continue
				}
				bodies[info.Defs[fn.Name]] = fn
				if fn.Recv != nil {
					methods[folder+"."+receiver(fn.Recv.List[0].Type)+"."+fn.Name.Name] = info.Defs[fn.Name]
				}
			}
		}
	}
	var all []entry
	for _, door := range doors {
		if methods[door] == nil {
			log.Fatalf("there is no method %s, at which a TrainJob entered: name the one that took its place", door)
		}
		w := &walk{house: h, info: info, bodies: bodies, entered: map[types.Object]bool{}}
		w.enter(methods[door])
		all = append(all, entry{door, w.returns()})
	}
	return all
}
