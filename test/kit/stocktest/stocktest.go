// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stocktest provides the runtimes that Kubeflow Trainer ships, read from its module.
package stocktest

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"sigs.k8s.io/yaml"
)

const trainerModule = "github.com/kubeflow/trainer/v2"

// dirs caches the folders by module: running go takes a while, and a module does not move during tests.
var dirs sync.Map

// ModuleDir is the folder of a module that go.mod requires, such as sigs.k8s.io/jobset, with its manifests.
func ModuleDir(t testing.TB, module string) string {
	t.Helper()
	if dir, known := dirs.Load(module); known {
		return dir.(string)
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", module, err)
	}
	dir := strings.TrimSpace(string(out))
	if dir == "" {
		t.Fatalf("the module %s is not in the module cache: go mod download %s", module, module)
	}
	dirs.Store(module, dir)
	return dir
}

// Runtimes returns all ClusterTrainingRuntimes of Trainer's manifests/base/runtimes by name, including those for the data cache and
// torchtune. The caller may modify them.
func Runtimes(t testing.TB) []*trainer.ClusterTrainingRuntime {
	t.Helper()
	var runtimes []*trainer.ClusterTrainingRuntime
	root := filepath.Join(ModuleDir(t, trainerModule), "manifests", "base", "runtimes")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" || entry.Name() == "kustomization.yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		runtime := &trainer.ClusterTrainingRuntime{}
		if err := yaml.UnmarshalStrict(text, runtime); err != nil {
			t.Errorf("%s: %v", path, err)
			return nil
		}
		runtimes = append(runtimes, runtime)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(runtimes) == 0 {
		t.Fatalf("no runtime in %s", root)
	}
	slices.SortFunc(runtimes, func(a, b *trainer.ClusterTrainingRuntime) int { return strings.Compare(a.Name, b.Name) })
	return runtimes
}

// Runtime returns the runtime with the name.
func Runtime(t testing.TB, name string) *trainer.ClusterTrainingRuntime {
	t.Helper()
	for _, runtime := range Runtimes(t) {
		if runtime.Name == name {
			return runtime
		}
	}
	t.Fatalf("Trainer ships no runtime %q", name)
	return nil
}
