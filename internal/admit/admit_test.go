// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"os"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/test/kit/jobtest"
	"github.com/kubeflow/datacache/test/kit/stocktest"
)

// TestTheTwinIsNotMadeYet checks the error for a TrainJob that is created before the controller has derived its runtime's twin.
func TestTheTwinIsNotMadeYet(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{trainer.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	node := jobset.ReplicatedJob{Name: "node"}
	node.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "node"}}
	torch := &trainer.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch"}}
	torch.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{node}
	a := &Admission{Readers: []client.Reader{fake.NewClientBuilder().WithScheme(scheme).WithObjects(torch).Build()}}
	job := &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train"},
		Spec: trainer.TrainJobSpec{RuntimeRef: trainer.RuntimeRef{Name: "torch"}, Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{
			StorageUri: new("cache://demo/reviews"), Env: []corev1.EnvVar{{Name: "METADATA_LOC", Value: "s3://lake/metadata.json"}},
		}}},
	}
	if errs, err := a.Mutate(t.Context(), request.Read(job, "team"), "1", job); len(errs) > 0 || err != nil {
		t.Fatal(errs, err)
	}
	_, errs, err := a.Validate(t.Context(), request.Read(job, "team"))
	const want = "the runtime torch-data-cache is not made yet from torch: try again in a few seconds"
	if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("it is rejected with %v and %v, want %q", err, errs, want)
	}
}

// twin returns a stock runtime of Trainer with the step that waits for a cache.
func twin(t *testing.T) *trainer.ClusterTrainingRuntime {
	t.Helper()
	torch := stocktest.Runtime(t, "torch-distributed")
	spec, err := inject.Twin(&torch.Spec, inject.Gate{Image: "gate"})
	if err != nil {
		t.Fatal(err)
	}
	torch.Spec, torch.Labels = *spec, inject.TwinLabels(torch.Labels)
	return torch
}

// cluster returns a client of an API server with the objects.
func cluster(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{trainer.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

// TestAnyoneIsNotAllowed checks the error for a TrainJob that wants a cache for anyone where none may be, by itself or by our runtime of Kubeflow's
// enhancement proposal 2655, whose clients send no token.
func TestAnyoneIsNotAllowed(t *testing.T) {
	torch := twin(t)
	text, err := os.ReadFile("../../runtimes/torch-distributed-with-cache.yaml")
	if err != nil {
		t.Fatal(err)
	}
	shipped := &trainer.ClusterTrainingRuntime{}
	if err := yaml.UnmarshalStrict(text, shipped); err != nil {
		t.Fatal(err)
	}
	const refused = "READERS=Anyone, of the TrainJob or of its runtime's step dataset-initializer, is not allowed by this installation of datacache (--allow-anyone=false): set READERS to Known"
	for _, tt := range []struct{ runtime, readers, want string }{
		{torch.Name, "", ""},
		{torch.Name, "Known", ""},
		{torch.Name, "Anyone", refused},
		{torch.Name, "Somebody", "must be Known or Anyone"},
		{shipped.Name, "", refused},
		{shipped.Name, "Known", ""},
	} {
		a := &Admission{Readers: []client.Reader{cluster(t, torch, shipped)}, Settings: inject.Settings{NoAnyone: true}}
		job := jobtest.TrainJob("cache://demo/reviews", "METADATA_LOC=s3://lake/metadata.json", "READERS="+tt.readers)
		job.Spec.RuntimeRef.Name = tt.runtime
		_, errs, err := a.Validate(t.Context(), request.Read(job, "team"))
		if got := errs.ToAggregate(); err != nil || (got == nil) != (tt.want == "") || got != nil && !strings.Contains(got.Error(), tt.want) {
			t.Errorf("READERS=%s on %s: %v, %v; want %q", tt.readers, tt.runtime, got, err, tt.want)
		}
		a.Settings.NoAnyone = false
		if _, errs, err := a.Validate(t.Context(), request.Read(job, "team")); tt.want == refused && (err != nil || len(errs) > 0) {
			t.Errorf("READERS=%s on %s where it is allowed: %v, %v", tt.readers, tt.runtime, errs, err)
		}
	}
}

// TestRanksOfANamedDataCache checks that ranks are counted for the data nodes of a DataCache that a TrainJob names.
func TestRanksOfANamedDataCache(t *testing.T) {
	torch := twin(t)
	large := &v1alpha1.DataCache{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}, Spec: v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{DataNodes: 1000}}}
	a := &Admission{Readers: []client.Reader{cluster(t, torch, large)}}
	for nodes, want := range map[int32]string{29_411: "", 29_412: "spec.trainer.numNodes: Invalid value: 29412"} {
		job := jobtest.TrainJob("datacache://web")
		job.Spec.Trainer = &trainer.Trainer{NumNodes: &nodes}
		_, errs, err := a.Validate(t.Context(), request.Read(job, "team"))
		if got := errs.ToAggregate(); err != nil || (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
			t.Errorf("%d ranks: %v, %v; want %q", nodes, got, err, want)
		}
	}
}
