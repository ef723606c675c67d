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
	exporters  = module + "/internal/tracing/export"
)

// ban lists imports that a folder must not reach, directly or through other packages of the module, with the reason. The packages of the
// folder itself, which are under the same ban, may import each other.
type ban struct {
	folder    string   // the ban applies to this folder and the folders below it
	forbidden []string // import paths, each with all paths below it
	strict    bool     // forbids everything but the standard library, the folder itself and allowed
	allowed   []string // import paths that strict allows
	except    string   // folder exempt from the ban: neither its own imports nor those reached through it count
	why       string
}

var bans = []ban{
	{folder: "cacheserver/epoch", strict: true, allowed: []string{"golang.org/x/sys/cpu"},
		why: "the order of an epoch is pure arithmetic, which every package may use"},
	{folder: "cacheserver/pack", strict: true, allowed: []string{own("epoch"), "golang.org/x/sys/cpu"},
		why: "which rows share a pack is arithmetic on lengths"},
	{folder: "cacheserver/pick", strict: true,
		why: "the index of a filter's rows is pure, and independent of where the rows are"},
	{folder: "cacheserver/assign", strict: true,
		why: "the assignment of rows to nodes is a pure function of the list of splits"},
	{folder: "cacheserver/filter/syntax", strict: true,
		why: "admission parses filters too, and must not link Arrow or Iceberg"},
	{folder: "internal/webpage", strict: true,
		why: "servers of the data plane and of the control plane link it"},
	{folder: "internal/overview", forbidden: []string{module + "/cacheserver", kubernetes + "/apiserver", kubernetes + "/client-go", sigs}, except: "internal/overview/reviewed",
		why: "kubectl's plugin draws the page too, and reads the caches itself"},
	{folder: "internal/wellknown", strict: true, allowed: []string{module + "/internal/reference"},
		why: "kubectl's plugin and everything of the control plane link it for the names alone"},
	{folder: "internal/request", forbidden: []string{module + "/cacheserver", module + "/internal/inject", kubernetes + "/client-go", sigs + "/controller-runtime/pkg/client", sigs + "/controller-runtime/pkg/manager"}, except: "cacheserver/filter/syntax",
		why: "it reads what a TrainJob requests without access to a cluster; what is added to the TrainJob follows from that"},
	{folder: "internal/inject", forbidden: []string{module + "/cacheserver", kubernetes + "/client-go", sigs + "/controller-runtime/pkg/client", sigs + "/controller-runtime/pkg/manager"}, except: "cacheserver/filter/syntax",
		why: "it computes what a TrainJob needs without access to a cluster, for the webhook, the controller and the plugin"},
	{folder: "internal/claim", forbidden: []string{module + "/cacheserver", kubernetes + "/client-go", sigs + "/controller-runtime"},
		why: "it computes the claims of scratch volumes without access to a cluster, for admission and the controller"},
	{folder: "cacheserver/column", forbidden: []string{icebergGo, grpc, flight, own("predicate"), own("source"), own("objstore"), own("rows")},
		why: "types, fields and values are those of any table"},
	{folder: "cacheserver/filter", forbidden: []string{icebergGo, grpc, flight, own("source"), own("objstore"), own("rows")},
		why: "it compiles the text of a WHERE clause for columns of any source"},
	{folder: "cacheserver/offheap", forbidden: []string{icebergGo, arrow, grpc, module + "/cacheserver"},
		why: "it is memory, of whatever is in it"},
	{folder: "cacheserver/rows", forbidden: []string{icebergGo, grpc, flight, module + "/cacheserver"}, except: "cacheserver/offheap",
		why: "rows in memory must not depend on their source or on how they are sent"},
	{folder: "cacheserver/rows/bitmap", strict: true,
		why: "bits are bits, whichever column and chunk they are of"},
	{folder: "cacheserver/rows/integer", strict: true, allowed: []string{"golang.org/x/sys/cpu"},
		why: "it converts integers, whichever column and chunk they are of"},
	{folder: "cacheserver/source/parquet/decode", forbidden: []string{icebergGo, grpc, flight, own("source/iceberg"), own("rows"), own("objstore"), own("head"), own("node"), own("protocol")},
		why: "it only decodes the bytes of a column chunk, independent of tables and of storage in memory"},
	{folder: "cacheserver/transport/h2", forbidden: []string{icebergGo, arrow, module},
		why: "it is a general gRPC server, independent of the service that uses it"},
	{folder: "cacheserver/transport/shared", forbidden: []string{icebergGo, arrow, grpc, module + "/cacheserver"}, except: "cacheserver/offheap",
		why: "it is memory for messages, whatever is in them and whoever sends them"},
	{folder: "cacheserver/protocol/exchange", strict: true, allowed: []string{"google.golang.org/protobuf/encoding/protowire"},
		why: "bytes from unauthenticated clients must not reach a general-purpose parser"},
	{folder: "cacheserver/objstore/blockcache", forbidden: []string{icebergGo, arrow, grpc, module + "/cacheserver"},
		why: "it caches blocks of objects of any store"},
	{folder: "cacheserver/objstore", forbidden: []string{icebergGo, arrow, grpc, own("head"), own("node"), own("protocol")},
		why: "it reads bytes by URI, independent of file formats"},
	{folder: "cacheserver/source", forbidden: []string{grpc, flight, own("head"), own("node"), own("protocol"), own("rows")},
		why: "a source produces record batches, independent of how they are kept and sent"},
	{folder: "cacheserver/source/files", forbidden: []string{own("source/iceberg"), own("source/delta"), icebergGo},
		why: "it reads files without a table format"},
	{folder: "cacheserver/source/iceberg", forbidden: []string{own("source/files"), own("source/delta")},
		why: "sources don't know each other"},
	{folder: "cacheserver/source/delta", forbidden: []string{own("source/files"), own("source/iceberg")},
		why: "sources don't know each other"},
	{folder: "cacheserver/source/scan", forbidden: []string{own("source/iceberg"), own("source/files"), own("source/delta"), icebergGo},
		why: "it reads tables of Parquet files, whichever source says which files and rows they have"},
	{folder: "cacheserver/source/parquet", forbidden: []string{own("source/iceberg"), own("source/files"), own("source/delta"), own("source/scan"), icebergGo},
		why: "it reads files; which files and rows a table has is decided by the table format"},
	{folder: "cacheserver/predicate", forbidden: []string{icebergGo, grpc, flight, own("source"), own("objstore"), own("rows")},
		why: "it evaluates filters on arrays of any source"},
	{folder: "cacheserver/protocol", forbidden: []string{icebergGo, own("head"), own("node"), own("objstore"), own("source")},
		why: "head and node depend on the protocol, not the reverse"},
	{folder: "cacheserver/spill", forbidden: []string{icebergGo, grpc, flight, own("source"), own("protocol"), own("node"), own("sweep")},
		why: "it keeps chunks in files, whatever is in them and whoever reads them"},
	{folder: "cacheserver/sweep", forbidden: []string{icebergGo, grpc, flight, own("source"), own("protocol"), own("node"), own("spill")},
		why: "it orders rows, wherever their chunks lie and whoever reads them"},
	{folder: "cacheserver/wait", forbidden: []string{own("head"), own("node"), own("source"), own("transport")},
		why: "it depends on the responses of a head, not on the implementation"},
	{folder: "cacheserver/head", forbidden: []string{own("node"), own("source/iceberg"), own("source/files"), own("source/delta"), icebergGo},
		why: "head and node communicate only by messages, and neither depends on the table format"},
	{folder: "cacheserver/node", forbidden: []string{own("head"), own("source/iceberg"), own("source/files"), own("source/delta"), icebergGo},
		why: "head and node communicate only by messages, and neither depends on the table format"},
	{folder: "cacheserver/put", forbidden: []string{icebergGo, own("head"), own("node"), own("transport"), own("rows"), own("source"), own("objstore")}, except: "cacheserver/put/incoming",
		why: "the life of puts is a pure state machine, which the head runs"},
	{folder: "cacheserver/sink", forbidden: []string{own("head"), own("node"), own("protocol/peer"), own("transport"), own("rows")},
		why: "it writes record batches into tables, wherever they come from and whoever asks"},
	{folder: "cacheserver/node/stage", forbidden: []string{own("node/load"), own("node/serve"), own("node/index")},
		why: "receiving rows does not depend on who reads them"},
	{folder: "cacheserver/node/load", forbidden: []string{own("node/serve"), own("node/index")},
		why: "loading rows does not depend on who reads them"},
	{folder: "cacheserver/node/serve", forbidden: []string{own("node/load"), own("node/index"), own("protocol/peer")}, except: "cacheserver/role",
		why: "streaming rows does not depend on how they came into memory"},
	{folder: "cacheserver", forbidden: []string{kubernetes, sigs, "github.com/kubeflow/trainer"},
		why: "the data plane must run without Kubernetes"},
	{folder: "cacheserver", forbidden: []string{module + "/objectcache"},
		why: "tables are read through an object cache by HTTP alone"},
	{folder: "cacheserver", forbidden: []string{exporters},
		why: "only commands decide where traces go, and what makes spans must not link the SDK"},
	{folder: "cacheserver", forbidden: []string{"html/template", "text/template"},
		why: "they call methods by name, so that the linker keeps all methods of all types: 20 MB in cacheserver"},
	{folder: "controller", forbidden: []string{exporters},
		why: "only commands decide where traces go, and what makes spans must not link the SDK"},
	{folder: "controller/arrow", forbidden: []string{"github.com/fluid-cloudnative", module + "/controller/fluid"},
		why: "engines don't know each other, and only one depends on Fluid"},
	{folder: "controller/fluid", forbidden: []string{module + "/controller/arrow", module + "/controller/heads"},
		why: "engines don't know each other, and only tables have heads"},
	{folder: "cmd/cacheserver", forbidden: []string{kubernetes, sigs, "github.com/kubeflow/trainer", "github.com/envoyproxy", module + "/objectcache"},
		why: "the command of the data plane must not link the control plane, nor the object cache"},
	{folder: "objectcache", forbidden: []string{icebergGo, arrow, grpc, module + "/cacheserver"}, except: "objectcache/xds",
		why: "the object cache stores blobs, independent of tables"},
	{folder: "objectcache", forbidden: []string{kubernetes, sigs}, except: "objectcache/kube",
		why: "the object cache must run without Kubernetes: docs/adr/0010-object-cache.md"},
	{folder: "cmd/objectcache", forbidden: []string{icebergGo, arrow, module + "/cacheserver"},
		why: "the command of the object cache must not link the data plane"},
	{folder: "objectcache/xds", forbidden: []string{icebergGo, arrow, kubernetes, module + "/cacheserver", objectCache("kube"), objectCache("store"), module + "/internal/identity"},
		why: "it turns members into configuration, whoever found them and whatever they store"},
}

func objectCache(folder string) string { return module + "/objectcache/" + folder }

func own(folder string) string { return module + "/cacheserver/" + folder }

func TestImportBans(t *testing.T) {
	_, files := repository(t)
	graph := graphOf(t, files)
	for _, b := range bans {
		t.Run(b.folder, func(t *testing.T) {
			dirs := below(graph, b.folder)
			if len(dirs) == 0 {
				t.Fatalf("no package in %s: remove the ban, or correct its folder", b.folder)
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
	if within(imported, module+"/"+b.folder) {
		return ""
	}
	for _, path := range b.forbidden {
		if within(imported, path) {
			return "banned"
		}
	}
	if !b.strict || isStandard(imported) {
		return ""
	}
	if slices.Contains(b.allowed, imported) {
		return ""
	}
	return "only the standard library and " + strings.Join(b.allowed, ", ") + " may be"
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

func below(graph map[string][]string, folder string) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for dir := range maps.Keys(graph) {
			if within(dir, folder) && !yield(dir) {
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
	b := ban{folder: "cacheserver/epoch", forbidden: []string{grpc}}
	if b.forbids(grpc+"/codes") == "" || found[grpc+"/codes"] == nil {
		t.Error("a banned import behind another package was not seen")
	}
	if found := reach(graph, "cacheserver/epoch", "cacheserver/extra"); found[grpc+"/codes"] != nil {
		t.Error("an exception's own import was held against others")
	}
	strict := ban{folder: "cacheserver/epoch", strict: true, allowed: []string{icebergGo}}
	for imported, want := range map[string]bool{"math/bits": true, icebergGo: true, icebergGo + "/table": false, arrow + "/v18/arrow": false} {
		if got := strict.forbids(imported) == ""; got != want {
			t.Errorf("import of %s allowed = %v, want %v", imported, got, want)
		}
	}
}
