// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

const (
	arrow      = "github.com/apache/arrow-go"
	flight     = "github.com/apache/arrow-go/v18/arrow/flight"
	grpc       = "google.golang.org/grpc"
	icebergGo  = "github.com/apache/iceberg-go"
	kubernetes = "k8s.io"
	sigs       = "sigs.k8s.io"
)

// ban lists imports that a folder must not reach, directly or through other packages of the module, with the reason.
type ban struct {
	room   string   // applies to the folder and all below it
	never  []string // import paths; each also bans the paths below it
	only   []string // if set: besides the standard library, only these may be imported
	strict bool     // only applies, even when it is empty
	except string   // a folder to which the ban does not apply, nor to what others reach through it
	why    string
}

var bans = []ban{
	{room: "cacheserver/epoch", strict: true, only: []string{"golang.org/x/sys/cpu"},
		why: "an epoch is arithmetic: anybody can check it, any room may use it"},
	{room: "cacheserver/assign", strict: true,
		why: "which node holds which rows is a pure function of a list of splits"},
	{room: "cacheserver/filter/syntax", strict: true,
		why: "admission reads a filter without Arrow, the data plane without Kubernetes"},
	{room: "internal/inject", never: []string{module + "/cacheserver", kubernetes + "/client-go", sigs + "/controller-runtime/pkg/client", sigs + "/controller-runtime/pkg/manager"}, except: "cacheserver/filter/syntax",
		why: "what a TrainJob needs is said without a cluster; the webhook, the controller and the plugin act on it"},
	{room: "internal/claim", never: []string{module + "/cacheserver", kubernetes + "/client-go", sigs + "/controller-runtime"},
		why: "what a scratch volume becomes is said without a cluster; admission and the controller act on it"},
	{room: "cacheserver/filter", strict: true, only: []string{icebergGo},
		why: "a WHERE text becomes an Iceberg expression and nothing else"},
	{room: "cacheserver/rows", never: []string{icebergGo, grpc, flight, module + "/cacheserver"},
		why: "memory holds Arrow rows, wherever they came from and whoever sends them"},
	{room: "cacheserver/source/parquet/decode", never: []string{icebergGo, grpc, flight, own("source/iceberg"), own("rows"), own("objstore"), own("head"), own("node"), own("protocol")},
		why: "a column chunk's bytes become values; whose they are and where they go is for others"},
	{room: "cacheserver/transport/h2", never: []string{icebergGo, arrow, module + "/cacheserver"},
		why: "a gRPC server; what is served over it is for others"},
	{room: "cacheserver/protocol/exchange", strict: true, only: []string{"google.golang.org/protobuf/encoding/protowire"},
		why: "strangers' bytes go through no general parser"},
	{room: "cacheserver/objstore/blockcache", never: []string{icebergGo, arrow, grpc, module + "/cacheserver"},
		why: "blocks of objects, whatever store they are in"},
	{room: "cacheserver/objstore", never: []string{icebergGo, arrow, grpc, own("head"), own("node"), own("protocol")},
		why: "bytes by URI; what they mean is for others"},
	{room: "cacheserver/source", never: []string{grpc, flight, own("head"), own("node"), own("protocol"), own("rows")},
		why: "a source makes record batches; who keeps and sends them is for others"},
	{room: "cacheserver/source/parquet", never: []string{own("source/iceberg"), icebergGo + "/catalog"},
		why: "files and their columns; which files a table has, and what is deleted in them, is for the table format"},
	{room: "cacheserver/predicate", never: []string{icebergGo + "/table", grpc, flight, own("source"), own("objstore"), own("rows")},
		why: "arrays against a filter, wherever they came from"},
	{room: "cacheserver/protocol", never: []string{icebergGo, own("head"), own("node"), own("objstore"), own("source")},
		why: "the roles use the protocol, and the protocol reads no files"},
	{room: "cacheserver/wait", never: []string{own("head"), own("node"), own("source"), own("transport")},
		why: "it knows what a head answers, and nothing of how"},
	{room: "cacheserver/head", never: []string{own("node"), own("source/iceberg"), icebergGo},
		why: "head and node meet in messages, not in code"},
	{room: "cacheserver/node", never: []string{own("head"), own("source/iceberg"), icebergGo},
		why: "head and node meet in messages, not in code"},
	{room: "cacheserver", never: []string{kubernetes, sigs, "github.com/kubeflow/trainer"}, except: objectCacheKube,
		why: "the data plane knows no Kubernetes; the planes meet in names and files"},
	{room: "cmd/cacheserver", never: []string{kubernetes, sigs, "github.com/kubeflow/trainer"}, except: objectCacheKube,
		why: "a command wires the rooms of its own plane"},
	{room: "cacheserver/objectcache", never: []string{icebergGo, arrow, grpc, own("head"), own("node"), own("objstore")},
		why: "blobs over HTTP; tables read through it as any client does"},
}

// objectCacheKube reviews tokens and watches members: docs/adr/0010-object-cache.md.
const objectCacheKube = "cacheserver/objectcache/kube"

func own(room string) string { return module + "/cacheserver/" + room }

func TestImportBans(t *testing.T) {
	_, files := repository(t)
	graph := graphOf(t, files)
	for _, b := range bans {
		t.Run(b.room, func(t *testing.T) {
			dirs := below(graph, b.room)
			if len(dirs) == 0 {
				t.Fatalf("no package in %s: take the ban out, or mend its name", b.room)
			}
			for _, dir := range dirs {
				for imported, via := range reach(graph, dir, b.except) {
					if b.except != "" && imported == module+"/"+b.except {
						continue
					}
					if reason := b.forbids(imported); reason != "" {
						t.Errorf("%s imports %s (%s): %s\n\tpath: %s", dir, imported, reason, b.why, strings.Join(via, " -> "))
					}
				}
			}
		})
	}
}

// forbids returns the reason why the folder must not import a path, or "".
func (b ban) forbids(imported string) string {
	for _, never := range b.never {
		if within(imported, never) {
			return "banned"
		}
	}
	if !b.strict || isStandard(imported) || within(imported, module+"/"+b.room) {
		return ""
	}
	if slices.Contains(b.only, imported) {
		return ""
	}
	return "only the standard library and " + strings.Join(b.only, ", ") + " may be"
}

// graphOf maps each folder with Go code to the imports of its non-test files.
func graphOf(t *testing.T, files []source) map[string][]string {
	t.Helper()
	graph := map[string][]string{}
	for _, f := range files {
		if f.isTest() {
			continue
		}
		graph[f.dir()] = append(graph[f.dir()], f.imports(t)...)
	}
	return graph
}

// reach returns every import path that dir reaches through packages of the module other than except, with the chain of imports.
func reach(graph map[string][]string, dir, except string) map[string][]string {
	found := map[string][]string{}
	var visit func(dir string, way []string)
	visit = func(dir string, way []string) {
		if dir == except {
			return
		}
		for _, imported := range graph[dir] {
			if _, seen := found[imported]; seen {
				continue
			}
			found[imported] = append(slices.Clone(way), imported)
			if inside, ok := strings.CutPrefix(imported, module+"/"); ok {
				visit(inside, found[imported])
			}
		}
	}
	visit(dir, []string{dir})
	return found
}

func below(graph map[string][]string, room string) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for dir := range maps.Keys(graph) {
			if within(dir, room) && !yield(dir) {
				return
			}
		}
	})
}

// within reports whether a path is the parent or is below it; "k8s.io" stands for all paths of that host.
func within(name, parent string) bool {
	return name == parent || strings.HasPrefix(name, parent+"/")
}

// isStandard reports whether an import path is in the standard library: its first element has no dot.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

func TestBansAreNotBlind(t *testing.T) {
	graph := map[string][]string{
		"cacheserver/epoch": {"math/bits", module + "/cacheserver/extra"},
		"cacheserver/extra": {grpc + "/codes"},
	}
	found := reach(graph, "cacheserver/epoch", "cacheserver/other")
	b := ban{room: "cacheserver/epoch", never: []string{grpc}}
	if b.forbids(grpc+"/codes") == "" || found[grpc+"/codes"] == nil {
		t.Error("a banned import behind another package was not seen")
	}
	if found := reach(graph, "cacheserver/epoch", "cacheserver/extra"); found[grpc+"/codes"] != nil {
		t.Error("an exception's own import was held against others")
	}
	strict := ban{room: "cacheserver/epoch", strict: true, only: []string{icebergGo}}
	for imported, want := range map[string]bool{"math/bits": true, icebergGo: true, icebergGo + "/table": false, arrow + "/v18/arrow": false} {
		if got := strict.forbids(imported) == ""; got != want {
			t.Errorf("import of %s allowed = %v, want %v", imported, got, want)
		}
	}
}
