// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/kubetest"
)

const (
	image     = "example.com/cacheserver:test"
	component = "../../manifests/components/trainer-manager"
)

var (
	cluster *kubetest.Cluster
	// platform is what a platform that runs trainer-manager installs: Trainer's stock manifests with our component.
	platform []*unstructured.Unstructured
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "plugin-")
	if err != nil {
		os.Exit(fail(err))
	}
	code := run(m, dir, os.Getenv("DATACACHE_KUBE"))
	if err := os.RemoveAll(dir); err != nil {
		code = fail(err)
	}
	os.Exit(code)
}

func run(m *testing.M, dir, tools string) int {
	program := filepath.Join(dir, "trainer-manager")
	build := exec.Command("go", "build", fmt.Sprintf("-race=%v", raceEnabled), "-o", program, "../../cmd/trainer-manager")
	if out, err := build.CombinedOutput(); err != nil {
		return fail(fmt.Errorf("go build cmd/trainer-manager: %w\n%s", err, out))
	}
	ours, err := render(dir, tools)
	if err != nil {
		return fail(err)
	}
	if err := os.Setenv("CACHE_IMAGE", image); err != nil { // which the Deployment sets
		return fail(err)
	}
	options := kubetest.Options{
		Tools: tools, CRDs: []string{ours}, Scheme: v1alpha1.AddToScheme,
		Programs: map[string]string{kubetest.Trainer: program},
	}
	return kubetest.Run(options, func(c *kubetest.Cluster) int {
		cluster = c
		return m.Run()
	})
}

// render fills platform, and writes what of it is not in Trainer's manifests to a file: the CRD, and what our controllers may do.
func render(dir, tools string) (ours string, err error) {
	trainer, err := os.ReadFile(filepath.Join(tools, "manifests", "trainer.yaml"))
	if err != nil {
		return "", fmt.Errorf("run make kube-tools: %w", err)
	}
	component, err := relative(dir, component)
	if err != nil {
		return "", err
	}
	kustomization := fmt.Sprintf("resources: [trainer.yaml]\ncomponents: [%s]\n", component)
	for name, text := range map[string][]byte{"trainer.yaml": trainer, "kustomization.yaml": []byte(kustomization)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return "", err
		}
	}
	rendered, err := exec.Command(filepath.Join(tools, "bin", "kubectl"), "kustomize", dir).Output()
	if err != nil {
		return "", fmt.Errorf("kubectl kustomize: %w", err)
	}
	var kept [][]byte
	for document := range bytes.SplitSeq(rendered, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return "", err
		}
		platform = append(platform, object)
		if strings.Contains(object.GetName(), "datacache") {
			kept = append(kept, document)
		}
	}
	ours = filepath.Join(dir, "ours.yaml")
	return ours, os.WriteFile(ours, bytes.Join(kept, []byte("\n---\n")), 0o600)
}

// relative is the way from a folder to another one, as kustomize wants it; links are followed first, as it does.
func relative(from, to string) (string, error) {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return "", err
	}
	if to, err = filepath.Abs(to); err != nil {
		return "", err
	}
	if to, err = filepath.EvalSymlinks(to); err != nil {
		return "", err
	}
	return filepath.Rel(from, to)
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "plugin:", err)
	return 1
}
