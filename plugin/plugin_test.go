// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/runtime"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// inner records its arguments; test/plugin uses Trainer's own runtimes instead.
type inner struct {
	runtime.Runtime
	got *trainer.TrainJob
}

func (i *inner) NewObjects(_ context.Context, job *trainer.TrainJob) ([]apiruntime.ApplyConfiguration, error) {
	i.got = job
	return nil, nil
}

func (i *inner) ValidateObjects(_ context.Context, _, job *trainer.TrainJob) (admission.Warnings, field.ErrorList) {
	i.got = job
	return nil, nil
}

func cacheJob() *trainer.TrainJob {
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train", UID: "job"},
		Spec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{APIGroup: &trainer.GroupVersion.Group, Kind: new(trainer.TrainingRuntimeKind), Name: "torch"},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{
				StorageUri: new("cache://demo/reviews"),
				Env:        []corev1.EnvVar{{Name: "METADATA_LOC", Value: "s3://lake/reviews/metadata/00001.metadata.json"}},
			}},
		},
	}
}

func source() *trainer.TrainingRuntime {
	training := jobset.ReplicatedJob{Name: "node"}
	training.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "node", Image: "torch"}}
	return &trainer.TrainingRuntime{
		TypeMeta:   metav1.TypeMeta{APIVersion: trainer.GroupVersion.String(), Kind: trainer.TrainingRuntimeKind},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "torch"},
		Spec: trainer.TrainingRuntimeSpec{Template: trainer.JobSetTemplateSpec{
			Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{training}},
		}},
	}
}

func twinOf(t *testing.T, source *trainer.TrainingRuntime) *trainer.TrainingRuntime {
	t.Helper()
	twin := source.DeepCopy()
	spec, err := inject.Twin(&source.Spec, inject.Gate{Image: "gate"})
	if err != nil {
		t.Fatal(err)
	}
	twin.Name, twin.Labels, twin.Spec = wellknown.TwinName(source.Name), inject.TwinLabels(source.Labels), *spec
	return twin
}

// built returns the ConfigMap in which Trainer stores the runtime that it built the TrainJob from.
func built(t *testing.T, job *trainer.TrainJob, from *trainer.TrainingRuntime) *corev1.ConfigMap {
	t.Helper()
	text, err := yaml.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name + snapshotSuffix,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, trainer.GroupVersion.WithKind(trainer.TrainJobKind))}},
		Data: map[string]string{snapshotKey: string(text)},
	}
}

// jobSet returns a JobSet whose training pods do or don't prefer their cache's zone.
func jobSet(job *trainer.TrainJob, zone bool) *jobset.JobSet {
	training := jobset.ReplicatedJob{Name: "node"}
	if zone {
		training.Template.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: corev1.PodAffinityTerm{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{wellknown.LabelCache: job.Name}},
			}}},
		}}
	}
	return &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name}, Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{training}}}
}

// TestBuiltOnce checks that a TrainJob is always built from the runtime with which Trainer first built it, regardless of later
// changes to the runtime or to our settings.
func TestBuiltOnce(t *testing.T) {
	t.Parallel()
	job := cacheJob()
	underived := source()
	underived.Labels = map[string]string{wellknown.LabelDerive: "false"}
	tests := map[string]struct {
		objects []client.Object
		runtime string // that Trainer builds from; "" for an error
		patches int
	}{
		"first":                       {[]client.Object{source(), twinOf(t, source())}, "torch-data-cache", 1},
		"first, without runtime":      {nil, "", 0},
		"runtime and twin are gone":   {[]client.Object{built(t, job, twinOf(t, source()))}, "torch-data-cache", 1},
		"relabelled":                  {[]client.Object{underived, built(t, job, twinOf(t, source()))}, "torch-data-cache", 1},
		"from before the plugin":      {[]client.Object{source(), twinOf(t, source()), built(t, job, source())}, "torch", 0},
		"JobSet with zone":            {[]client.Object{built(t, job, twinOf(t, source())), jobSet(job, true)}, "torch-data-cache", 1},
		"JobSet from other settings":  {[]client.Object{built(t, job, twinOf(t, source())), jobSet(job, false)}, "torch-data-cache", 0},
		"somebody else's of its name": {[]client.Object{source(), built(t, edited(job), source())}, "torch-data-cache", 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trainers, decorated := decorate(t, tt.objects...)
			_, err := decorated.NewObjects(t.Context(), job)
			if (err != nil) != (tt.runtime == "") {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				return
			}
			if got := trainers.got; got.Spec.RuntimeRef.Name != tt.runtime || len(got.Spec.RuntimePatches) != tt.patches {
				t.Errorf("built from %s with patches %+v, want %s and %d of them", got.Spec.RuntimeRef.Name, got.Spec.RuntimePatches, tt.runtime, tt.patches)
			}
		})
	}
}

func edited(job *trainer.TrainJob) *trainer.TrainJob {
	other := job.DeepCopy()
	other.UID = "another"
	return other
}

// TestUpdatesOfAdmittedJobs checks that a TrainJob that was admitted can always be suspended and resumed.
func TestUpdatesOfAdmittedJobs(t *testing.T) {
	t.Parallel()
	job := cacheJob()
	gang := source()
	gang.Spec.PodGroupPolicy = &trainer.PodGroupPolicy{PodGroupPolicySource: trainer.PodGroupPolicySource{Volcano: &trainer.VolcanoPodGroupPolicySource{}}}
	for name, objects := range map[string][]client.Object{
		"all is there":             {source(), twinOf(t, source())},
		"runtime and twin gone":    {built(t, job, twinOf(t, source()))},
		"gone before it was built": nil,
		"runtime got a gang":       {gang},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, decorated := decorate(t, objects...)
			suspended := job.DeepCopy()
			suspended.Spec.Suspend = new(true)
			if _, errs := decorated.ValidateObjects(t.Context(), job, suspended); len(errs) > 0 {
				t.Error(errs)
			}
		})
	}
}

func decorate(t *testing.T, objects ...client.Object) (*inner, runtime.Runtime) {
	t.Helper()
	scheme := apiruntime.NewScheme()
	for _, add := range []func(*apiruntime.Scheme) error{corev1.AddToScheme, trainer.AddToScheme, jobset.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	trainers := &inner{}
	decorated := map[string]runtime.Runtime{"kind": trainers}
	Decorate(decorated, Settings{}, fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build())
	return trainers, decorated["kind"]
}
