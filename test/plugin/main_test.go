// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const (
	image     = "example.com/cacheserver:test"
	component = "../../manifests/components/trainer-manager"
)

var (
	cluster *kubetest.Cluster
	// platform is what a platform with trainer-manager installs: Trainer's stock manifests with our component.
	platform []*unstructured.Unstructured
	program  string // trainer-manager, built
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
	program = filepath.Join(dir, "trainer-manager")
	//nolint:forbidigo // called from TestMain, which has no context
	err := kubetest.Build(context.Background(), "../..", "./cmd/trainer-manager", program, fmt.Sprintf("-race=%v", raceEnabled))
	if err != nil {
		return fail(err)
	}
	var ours string
	if platform, ours, err = render(dir, tools, "kubeflow-system"); err != nil {
		return fail(err)
	}
	for name, value := range map[string]string{"CACHE_IMAGE": image, "STATUS_ADDRESS": "127.0.0.1:0", "GANGS": "true"} { // as the Deployment does
		if err := os.Setenv(name, value); err != nil {
			return fail(err)
		}
	}
	options := kubetest.Options{
		Tools: tools, CRDs: []string{ours}, Scheme: v1alpha1.AddToScheme,
		Programs: map[string]string{kubetest.Trainer: program}, Schedulers: os.Getenv("DATACACHE_SCHEDULERS"),
	}
	return kubetest.Run(options, func(c *kubetest.Cluster) int {
		cluster = c
		return m.Run()
	})
}

// render returns the objects that a platform with Trainer in a namespace installs, and a file with those of them that are not in
// Trainer's manifests: the CRD, and our controllers' permissions.
func render(dir, tools, namespace string) (objects []*unstructured.Unstructured, ours string, err error) {
	trainer, err := os.ReadFile(filepath.Join(tools, "manifests", "trainer.yaml"))
	if err != nil {
		return nil, "", fmt.Errorf("run make kube-tools: %w", err)
	}
	component, err := relative(dir, component)
	if err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(filepath.Join(dir, "trainer"), 0o700); err != nil {
		return nil, "", err
	}
	for name, text := range map[string]string{
		"trainer/trainer.yaml":       string(trainer),
		"trainer/kustomization.yaml": fmt.Sprintf("namespace: %s\nresources: [trainer.yaml]\n", namespace),
		"kustomization.yaml":         fmt.Sprintf("resources: [trainer]\ncomponents: [%s, %[1]s-fluid]\n", component),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, "", err
		}
	}
	rendered, err := exec.Command(filepath.Join(tools, "bin", "kubectl"), "kustomize", dir).Output()
	if err != nil {
		return nil, "", fmt.Errorf("kubectl kustomize: %w", err)
	}
	if objects, err = split(rendered); err != nil {
		return nil, "", err
	}
	var kept []byte
	for _, object := range objects {
		if strings.Contains(object.GetName(), "datacache") && object.GetNamespace() == "" {
			document, err := yaml.Marshal(object.Object)
			if err != nil {
				return nil, "", err
			}
			kept = append(append(kept, "---\n"...), document...)
		}
	}
	ours = filepath.Join(dir, "ours.yaml")
	return objects, ours, os.WriteFile(ours, kept, 0o600)
}

// split parses a YAML file with several documents.
func split(text []byte) (objects []*unstructured.Unstructured, err error) {
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// relative returns the relative path from a folder to another, as kustomize requires; it resolves symbolic links first, as kustomize
// does.
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
