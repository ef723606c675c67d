// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/stocktest"
)

var update = flag.Bool("update", false, "write the golden files and runtimes/ anew") //nolint:forbidigo // a flag of the test binary

// image is the image that the manifests name; an overlay's images entry replaces it.
const image = "ghcr.io/kubeflow/datacache/cacheserver:v0.1.0"

const header = `# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
`

// TestTwinsOfStockRuntimes compares the twins of all runtimes that Trainer ships with testdata/twins, which people can read.
func TestTwinsOfStockRuntimes(t *testing.T) {
	for _, source := range stocktest.Runtimes(t) {
		t.Run(source.Name, func(t *testing.T) {
			golden(t, filepath.Join("testdata", "twins", source.Name+".yaml"), header, twinOf(t, source, wellknown.TwinName(source.Name)))
		})
	}
}

// kepRuntime is the runtime that the sample of Kubeflow's enhancement proposal 2655 names.
const kepRuntime = "torch-distributed-with-cache"

// shipped are our runtimes in runtimes/ and what they are made from: the runtimes of Trainer, and testdata/torchft.yaml. The first has the
// name that the KEP's sample and the SDK's examples use.
var shipped = map[string]string{
	kepRuntime:                         "torch-distributed",
	"deepspeed-distributed-with-cache": "deepspeed-distributed",
	"torchft-with-cache":               "torchft",
}

// TestShippedRuntimesAreTwins checks that runtimes/ is the output of Twin.
func TestShippedRuntimesAreTwins(t *testing.T) {
	for name, source := range shipped {
		t.Run(name, func(t *testing.T) {
			of, from := torchft(t), "internal/inject/testdata/torchft.yaml"
			if source != of.Name {
				of, from = stocktest.Runtime(t, source), "Trainer's "+source
			}
			runtime := twinOf(t, of, name)
			runtime.Annotations = nil
			if name == kepRuntime { // whose sample client sends no token
				steps := runtime.Spec.Template.Spec.ReplicatedJobs
				gate := &steps[slices.IndexFunc(steps, func(j jobset.ReplicatedJob) bool { return j.Name == wellknown.StepName })].Template.Spec.Template.Spec.Containers[0]
				gate.Env = append(gate.Env, corev1.EnvVar{Name: "READERS", Value: string(v1alpha1.ReadersAnyone)})
			}
			golden(t, filepath.Join("..", "..", "runtimes", name+".yaml"),
				header+"#\n# "+from+" with our gate, written by go test ./internal/inject -update: don't edit.\n", runtime)
		})
	}
}

// torchft reads the runtime for torchft, which Trainer has none of.
func torchft(t *testing.T) *trainer.ClusterTrainingRuntime {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "torchft.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	runtime := &trainer.ClusterTrainingRuntime{}
	if err := yaml.UnmarshalStrict(text, runtime); err != nil {
		t.Fatal(err)
	}
	return runtime
}

// TestShippedImagesAreTrainers checks that the tags in runtimes/kustomization.yaml match go.mod.
func TestShippedImagesAreTrainers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "runtimes", "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var kustomization struct {
		Resources []string
		Images    []struct{ Name, NewTag string }
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		t.Fatal(err)
	}
	if len(kustomization.Resources) != len(shipped) {
		t.Errorf("resources %v, want those of %d runtimes", kustomization.Resources, len(shipped))
	}
	_, version, _ := strings.Cut(filepath.Base(stocktest.ModuleDir(t, "github.com/kubeflow/trainer/v2")), "@")
	for _, image := range kustomization.Images {
		if strings.Contains(image.Name, "/trainer/") && image.NewTag != version {
			t.Errorf("%s:%s, but go.mod has Trainer %s", image.Name, image.NewTag, version)
		}
	}
}

// twinOf makes the twin as the controller does.
func twinOf(t *testing.T, source *trainer.ClusterTrainingRuntime, name string) *trainer.ClusterTrainingRuntime {
	t.Helper()
	spec, err := Twin(&source.Spec, Gate{Image: image})
	if err != nil {
		t.Fatal(err)
	}
	return &trainer.ClusterTrainingRuntime{
		TypeMeta: source.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: TwinLabels(source.Labels), Annotations: map[string]string{wellknown.AnnotationTwinOf: source.Name},
		},
		Spec: *spec,
	}
}

// golden compares an object with a file, or writes the file with -update.
func golden(t *testing.T, path, comment string, object any) {
	t.Helper()
	text, err := yaml.Marshal(pruned(t, object))
	if err != nil {
		t.Fatal(err)
	}
	text = append([]byte(comment+"\n"), text...)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: go test ./internal/inject -update writes it", err)
	}
	if !bytes.Equal(text, want) {
		t.Errorf("%s differs (-want +got), go test ./internal/inject -update writes it anew:\n%s", path, cmp.Diff(string(want), string(text)))
	}
}

// pruned returns the object's JSON without the empty structs that Go can't omit.
func pruned(t *testing.T, object any) any {
	t.Helper()
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	prune(tree)
	return tree
}

func prune(tree any) {
	switch tree := tree.(type) {
	case []any:
		for _, item := range tree {
			prune(item)
		}
	case map[string]any:
		for name, item := range tree {
			prune(item)
			inner, isMap := item.(map[string]any)
			if isMap && len(inner) == 0 && (name == "metadata" || name == "resources" || name == "status") {
				delete(tree, name)
			}
		}
	}
}
