// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/files"
	"github.com/kubeflow/datacache/cacheserver/source/hub"
	"github.com/kubeflow/datacache/test/kit/hubtest"
	"github.com/kubeflow/datacache/test/kit/parquettest"
)

// named returns files with one row each, which is the file's own path. Every second one is kept in LFS. Paths that are not of Parquet files
// are text.
func named(t *testing.T, card string, paths ...string) map[string]hubtest.File {
	t.Helper()
	all := map[string]hubtest.File{}
	if card != "" {
		all["README.md"] = hubtest.File{Text: card}
	}
	for i, p := range paths {
		text := "not Parquet"
		if strings.HasSuffix(p, ".parquet") {
			b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "file", Type: arrow.BinaryTypes.String}}, nil))
			b.Field(0).(*array.StringBuilder).Append(p)
			rec := b.NewRecordBatch()
			text = string(parquettest.Write(t, rec, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps()))
			rec.Release()
			b.Release()
		}
		all[p] = hubtest.File{Text: text, LFS: i%2 == 0}
	}
	return all
}

func card(configs string) string {
	return "---\nlicense: mit\nconfigs:\n" + configs + "---\n# A data set\n"
}

// repos are data sets by the forms in which owners lay them out.
func repos(t *testing.T) map[string]map[string]hubtest.File {
	return map[string]map[string]hubtest.File{
		"sharded": named(t, "", "data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet", "data/test-00000-of-00001-ab12.parquet", "other/train.parquet"),
		"odd":     named(t, "", "data/validation_top10-00000-of-00001.parquet"),
		"folders": named(t, "", "train/b.parquet", "train/a/c.parquet", "dev/x.parquet", "evaluation-2/y.parquet", "misc/z.parquet"),
		"names":   named(t, "", "train.parquet", "en_train_2.parquet", "my-val-1.parquet", "training10.parquet", "retrained.parquet"),
		"plain":   named(t, "", "b.parquet", "a.parquet", "sub/c.parquet", ".git/d.parquet", "__x/e.parquet", "_f.parquet"),
		"globs": named(t, card(`- config_name: en
  data_files:
  - {split: train, path: "en/t-*.parquet"}
  - split: held
    path: ["en/h.parquet", "more/**"]
- config_name: de
  default: true
  data_files: "de/*.parquet"
- config_name: fr
  data_dir: fr
`), "en/t-1.parquet", "en/t-0.parquet", "en/h.parquet", "more/x/y.parquet", "de/1.parquet", "de/0.parquet", "fr/train.parquet", "fr/test.parquet"),
	}
}

// pick is a part of a data set.
type pick struct {
	Repo     string `json:"repo"`
	Config   string `json:"config"`
	Split    string `json:"split"`
	Revision string `json:"revision"`
}

func (p pick) uri() string {
	uri := "hf://" + p.Repo
	if p.Revision != "" {
		uri += "@" + p.Revision
	}
	var query []string
	for _, q := range [][2]string{{"config", p.Config}, {"split", p.Split}} {
		if q[1] != "" {
			query = append(query, q[0]+"="+q[1])
		}
	}
	if len(query) > 0 {
		uri += "?" + strings.Join(query, "&")
	}
	return uri
}

// TestFilesAreThoseOfDatasets compares the files that are read, and their order, with those that the library datasets reads.
func TestFilesAreThoseOfDatasets(t *testing.T) {
	python := os.Getenv("DATACACHE_HUB_PYTHON")
	if python == "" {
		t.Skip("DATACACHE_HUB_PYTHON names no Python that has datasets: run by make, which makes one of hack/python/hub.txt")
	}
	var served []*hubtest.Repo
	for name, f := range repos(t) {
		served = append(served, &hubtest.Repo{Kind: "datasets", ID: "acme/" + name, Files: f})
	}
	server := hubtest.Start(t, served...)
	server.Change(func(h *hubtest.Hub) { h.Page = 3 })
	picks := []pick{
		{"acme/sharded", "", "train", ""},
		{"acme/sharded", "", "test", "main"},
		{"acme/odd", "", "validation_top10", ""},
		{"acme/folders", "", "train", ""},
		{"acme/folders", "", "validation", ""},
		{"acme/folders", "", "test", ""},
		{"acme/names", "", "train", ""},
		{"acme/names", "", "validation", ""},
		{"acme/plain", "", "train", ""},
		{"acme/globs", "en", "train", ""},
		{"acme/globs", "en", "held", ""},
		{"acme/globs", "", "train", ""},
		{"acme/globs", "fr", "test", ""},
	}
	text, err := json.Marshal(picks)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), python, "testdata/datasets_files.py", string(text))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "HF_HOME=" + home, "HF_ENDPOINT=" + server.URL, "HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_DISABLE_XET=1"}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var want [][]string
	if err == nil {
		err = json.Unmarshal(out, &want)
	}
	if err != nil {
		t.Fatalf("datasets: %v: %s", err, out)
	}
	store := objstore.New(objstore.Config{Hub: objstore.Hub{Endpoint: server.URL}})
	for i, p := range picks {
		t.Run(p.uri(), func(t *testing.T) {
			plan, err := (&files.Source{Store: store, Location: files.Location{URIs: []string{p.uri()}}}).Plan(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range plan.Splits {
				_, path, _ := strings.Cut(s.File, "@")
				_, path, _ = strings.Cut(path, "/")
				got = append(got, path)
			}
			if diff := cmp.Diff(want[i], got); diff != "" {
				t.Errorf("(-datasets +got):\n%s", diff)
			}
		})
	}
}

// TestWhatIsRefused checks what a user reads who names no data set, or not one of several parts.
func TestWhatIsRefused(t *testing.T) {
	gated := &hubtest.Repo{Kind: "datasets", ID: "acme/gated", Gated: true, Readers: []string{"hf_reader"}, Files: named(t, "", "train.parquet")}
	private := &hubtest.Repo{Kind: "datasets", ID: "acme/private", Private: true, Readers: []string{"hf_reader"}, Files: named(t, "", "train.parquet")}
	text := &hubtest.Repo{Kind: "datasets", ID: "acme/text", Files: named(t, "", "train.csv")}
	cut := &hubtest.Repo{Kind: "datasets", ID: "acme/cut", Files: named(t, "", "train.csv"), Converted: named(t, "", "default/partial-train/0000.parquet")}
	served := []*hubtest.Repo{gated, private, text, cut}
	for name, f := range repos(t) {
		served = append(served, &hubtest.Repo{Kind: "datasets", ID: "acme/" + name, Files: f})
	}
	server := hubtest.Start(t, served...)
	tests := map[string]struct {
		uri  string
		want []string
		is   error
	}{
		"no owner":             {"hf://squad", []string{"hf://squad", "hf://owner/name"}, nil},
		"several splits":       {"hf://acme/sharded", []string{"2 splits", "test, train", "?split="}, nil},
		"no such split":        {"hf://acme/sharded?split=val", []string{`no split "val"`, "test, train"}, nil},
		"no such config":       {"hf://acme/globs?config=it", []string{`no config "it"`, "en, de, fr"}, nil},
		"config twice":         {"hf://acme/globs?config=en&config=de", []string{"config=en,de"}, nil},
		"another parameter":    {"hf://acme/globs?columns=a", []string{"columns=a"}, nil},
		"a path and a split":   {"hf://acme/globs/de?split=train", []string{"split", "de"}, nil},
		"no such data set":     {"hf://acme/none", []string{"hf://acme/none", "Repository not found"}, fs.ErrPermission},
		"no such revision":     {"hf://acme/plain@v9", []string{"hf://acme/plain@v9", "Invalid rev id"}, fs.ErrNotExist},
		"no such file":         {"hf://acme/plain/none.parquet", []string{"hf://acme/plain", "none.parquet", "Entry not found"}, fs.ErrNotExist},
		"gated":                {"hf://acme/gated", []string{"acme/gated", "HF_TOKEN", "grants access"}, fs.ErrPermission},
		"private":              {"hf://acme/private", []string{"acme/private", "HF_TOKEN"}, fs.ErrPermission},
		"no Parquet":           {"hf://acme/text", []string{"acme/text", "no Parquet files", "Invalid rev id"}, fs.ErrNotExist},
		"converted to a limit": {"hf://acme/cut", []string{"converted only to a limit"}, nil},
		"the same files twice": {"hf://acme/plain hf://acme/plain/", []string{"is named twice by"}, nil},
	}
	store := objstore.New(objstore.Config{Hub: objstore.Hub{Endpoint: server.URL}, Retry: objstore.Retry{Attempts: 1}})
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := (&files.Source{Store: store, Location: files.Location{URIs: strings.Split(tt.uri, " ")}}).Plan(t.Context(), nil, nil)
			if err == nil {
				t.Fatal("it is planned")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want it to say %q", err, want)
				}
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%v is no %v", err, tt.is)
			}
		})
	}
}

// TestOneCommitIsRead checks that a plan stays at the commit that the revision was, that its identity does not depend on it, that the hub's
// token goes to the hub alone, and that a file's server is asked for at the hub once.
func TestOneCommitIsRead(t *testing.T) {
	repo := &hubtest.Repo{Kind: "datasets", ID: "acme/data", Gated: true, Readers: []string{"hf_reader"}, Files: named(t, "", "train.parquet")}
	repo.Files["train.parquet"] = hubtest.File{Text: repo.Files["train.parquet"].Text, LFS: true}
	server := hubtest.Start(t, repo)
	token := t.TempDir() + "/token"
	if err := os.WriteFile(token, []byte("hf_reader\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	store := objstore.New(objstore.Config{Hub: objstore.Hub{Endpoint: server.URL + "/", TokenFile: token}})
	s := &files.Source{Store: store, Location: files.Location{URIs: []string{"hf://datasets/acme/data"}}}
	plan, err := s.Plan(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := "hf://acme/data@" + repo.Commit() + "/train.parquet"
	if len(plan.Splits) != 1 || plan.Splits[0].File != want {
		t.Fatalf("%+v, want the file %s", plan.Splits, want)
	}
	atCommit := &files.Source{Store: store, Location: files.Location{URIs: []string{"hf://acme/data@" + repo.Commit()}}}
	again, err := atCommit.Plan(t.Context(), nil, nil)
	if err != nil || again.Identity.Snapshot != plan.Identity.Snapshot {
		t.Errorf("at the commit the version is %v, %v, want %v", again.Identity.Snapshot, err, plan.Identity.Snapshot)
	}
	if !server.Saw("hf_reader") {
		t.Error("the hub got no token")
	}
	text, err := store.ReadAtMost(t.Context(), want, 1<<30)
	if err != nil || string(text) != repo.Files["train.parquet"].Text {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	path := "GET /datasets/acme/data/resolve/" + repo.Commit() + "/train.parquet"
	if n := server.Requests(path); n != 1 {
		t.Errorf("%d requests %s, want 1", n, path)
	}
}

// TestConversion reads a data set of CSV files as the hub converted it.
func TestConversion(t *testing.T) {
	repo := &hubtest.Repo{
		Kind: "datasets", ID: "acme/csv", Files: named(t, "", "a.csv"),
		Converted: named(t, "", "de/train/0000.parquet", "en/train/0001.parquet", "en/train/0000.parquet", "en/test/0000.parquet"),
	}
	server := hubtest.Start(t, repo)
	store := objstore.New(objstore.Config{Hub: objstore.Hub{Endpoint: server.URL}})
	for uri, want := range map[string][]string{
		"hf://acme/csv?config=en&split=train":                     {"en/train/0000.parquet", "en/train/0001.parquet"},
		"hf://acme/csv@refs/convert/parquet?config=de":            {"de/train/0000.parquet"},
		"hf://acme/csv@refs%2Fconvert%2Fparquet/en/t*/0*":         {"en/test/0000.parquet", "en/train/0000.parquet", "en/train/0001.parquet"},
		"hf://acme/csv@refs/convert/parquet/en/test/0000.parquet": {"en/test/0000.parquet"},
	} {
		plan, err := (&files.Source{Store: store, Location: files.Location{URIs: []string{uri}}}).Plan(t.Context(), nil, nil)
		if err != nil {
			t.Errorf("%s: %v", uri, err)
			continue
		}
		var got []string
		for _, s := range plan.Splits {
			got = append(got, strings.TrimPrefix(s.File, "hf://acme/csv@"+repo.ConvertedCommit()+"/"))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", uri, got, want)
		}
	}
}

// FuzzAddresses checks that addresses, which users write, break nothing.
func FuzzAddresses(f *testing.F) {
	f.Add("hf://datasets/a/b@refs/pr/1/x/*.parquet?config=c")
	f.Add("hf://a/b?split=%zz")
	f.Fuzz(func(t *testing.T, uri string) {
		a, err := hub.Parse(uri)
		if err == nil && (!strings.HasPrefix(a.Folder(), hub.Scheme) || !strings.HasSuffix(a.Folder(), "/")) {
			t.Errorf("%q is in %q", uri, a.Folder())
		}
	})
}
