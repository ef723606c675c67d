// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gomodule "golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

// published is the module with the version under which the tests publish it, which does not exist otherwise.
var published = gomodule.Version{Path: module, Version: "v0.0.1"}

// tracked is a file of the repository that is put into the module's zip.
type tracked string

var _ modzip.File = tracked("")

func (f tracked) Path() string                 { return string(f) }
func (f tracked) Lstat() (fs.FileInfo, error)  { return os.Lstat(filepath.Join(root, string(f))) }
func (f tracked) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(root, string(f))) }

// moduleZip returns the zip with which the go command gets the module, made of the files in git's index, as a module proxy makes it
// of a tag.
func moduleZip(t *testing.T) []byte {
	t.Helper()
	names, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("no git checkout: %v", err)
	}
	var files []modzip.File
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if _, err := tracked(name).Lstat(); !errors.Is(err, fs.ErrNotExist) { // deleted in the working tree
			files = append(files, tracked(name))
		}
	}
	var out bytes.Buffer
	if err := modzip.Create(&out, published, files); err != nil {
		t.Fatalf("the go command refuses the module: %v", err)
	}
	return out.Bytes()
}

// TestModuleZip checks that the go command accepts the module's zip (sizes, names, names that differ only in case), and that it
// contains everything that the commands are built from. The zip omits files that are not in git, links, and files of nested modules.
func TestModuleZip(t *testing.T) {
	data := moduleZip(t)
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, f := range archive.File {
		has[strings.TrimPrefix(f.Name, published.String()+"/")] = true
	}
	t.Logf("%d files, %d bytes", len(has), len(data))
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=Dir,ImportPath,GoFiles,SFiles,HFiles,EmbedFiles", "./cmd/...")
	list.Dir, list.Stderr = root, t.Output()
	text, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	used := 0
	for packages := json.NewDecoder(bytes.NewReader(text)); packages.More(); {
		var p struct {
			Dir, ImportPath                     string
			GoFiles, SFiles, HFiles, EmbedFiles []string
		}
		if err := packages.Decode(&p); err != nil {
			t.Fatal(err)
		}
		below, ours := strings.CutPrefix(p.ImportPath, module+"/")
		if !ours {
			continue
		}
		for _, files := range [][]string{p.GoFiles, p.SFiles, p.HFiles, p.EmbedFiles} {
			for _, name := range files {
				if used++; !has[below+"/"+name] {
					t.Errorf("package %s is built of %s, which the module's zip lacks: commit it, as a regular file, outside modules below", p.ImportPath, name)
				}
			}
		}
	}
	if !has["go.mod"] || used < 100 {
		t.Errorf("the commands are built of %d files, want hundreds; go.mod is in the zip: %v", used, has["go.mod"])
	}
}

// TestGoInstall installs cacheserver from the module's zip, as `go install PACKAGE@VERSION` does: without a checkout, and in this
// test without a network. Modules come from this machine's module cache.
func TestGoInstall(t *testing.T) {
	if os.Getenv("DATACACHE_GO_INSTALL") == "" {
		t.Skip("it compiles the module once more, under another path: make test-go-install")
	}
	proxy, bin := t.TempDir(), t.TempDir()
	dir := filepath.Join(proxy, module, "@v")
	goMod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, published.Version, time.Unix(0, 0).UTC().Format(time.RFC3339))
	v := published.Version
	for name, data := range map[string][]byte{"list": []byte(v), v + ".info": []byte(info), v + ".mod": goMod, v + ".zip": moduleZip(t)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	downloads := filepath.Join(strings.TrimSpace(string(cache)), "cache", "download")
	install := exec.CommandContext(t.Context(), "go", "install", module+"/cmd/cacheserver@"+published.Version)
	install.Dir = bin // outside of any module
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOMODCACHE="+t.TempDir(), "GOPROXY=file://"+proxy+",file://"+downloads,
		"GOFLAGS=-mod=mod -modcacherw -trimpath", "GOSUMDB=off", "GOTOOLCHAIN=local", "GOWORK=off")
	begin := time.Now()
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", install, err, out)
	}
	t.Logf("installed in %s", time.Since(begin).Round(time.Second))
	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", filepath.Join(bin, "cacheserver")).CombinedOutput()
	if want := module + "\t" + published.Version; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("go version -m: %v, want the module %q:\n%s", err, want, out)
	}
	out, err = exec.CommandContext(t.Context(), filepath.Join(bin, "cacheserver"), "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "cacheserver "+v+",") {
		t.Errorf("cacheserver version: %v, %s", err, out)
	}
}
