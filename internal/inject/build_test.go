// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/stocktest"
)

const (
	location = "METADATA_LOC=s3://bucket/reviews/metadata/00003.metadata.json"
	table    = "cache://demo/reviews"
)

// trainJob returns a TrainJob as the Kubeflow SDK builds it, with variables as NAME=value. An empty URI is omitted.
func trainJob(uri string, env ...string) *trainer.TrainJob {
	dataset := &trainer.DatasetInitializer{Env: variables(env...)}
	if uri != "" {
		dataset.StorageUri = &uri
	}
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Name: "train", Namespace: "team-a"},
		Spec: trainer.TrainJobSpec{
			RuntimeRef:  trainer.RuntimeRef{Name: "torch-distributed", Kind: new("ClusterTrainingRuntime"), APIGroup: new("trainer.kubeflow.org")},
			Initializer: &trainer.Initializer{Dataset: dataset},
		},
	}
}

func variables(env ...string) []corev1.EnvVar {
	var all []corev1.EnvVar
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		all = append(all, corev1.EnvVar{Name: name, Value: value})
	}
	return all
}

// stock returns one of Trainer's runtimes.
func stock(t testing.TB, name string) *Runtime {
	t.Helper()
	return Cluster(stocktest.Runtime(t, name))
}

// twin returns the twin of a runtime.
func twin(t testing.TB, source *Runtime) *Runtime {
	t.Helper()
	spec, err := Twin(source.Spec, Gate{Image: image})
	if err != nil {
		t.Fatal(err)
	}
	return &Runtime{Kind: source.Kind, Name: wellknown.TwinName(source.Name), Labels: TwinLabels(source.Labels), Spec: spec}
}

// expect checks that there are as many errors as elements of want, and that each contains all texts of its element, in order.
func expect(t *testing.T, errs field.ErrorList, want ...[]string) {
	t.Helper()
	if len(errs) != len(want) {
		t.Fatalf("%d errors, want %d: %v", len(errs), len(want), errs)
	}
	for i, parts := range want {
		for _, part := range parts {
			if !strings.Contains(errs[i].Error(), part) {
				t.Errorf("error %d: %q\n\tdoes not hold %q", i, errs[i], part)
			}
		}
	}
}
