// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

func source(changes ...func(*trainer.TrainingRuntime)) *trainer.TrainingRuntime {
	runtime := &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{
		Name: "torch", Namespace: "team-a", Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"},
	}}
	runtime.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{{
		Name: "node", Replicas: 1,
		Template: batchv1.JobTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
			Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "node", Image: "example.com/torch"}},
			}}},
		},
	}}
	for _, change := range changes {
		change(runtime)
	}
	return runtime
}

func labelled(name, value string) func(*trainer.TrainingRuntime) {
	return func(r *trainer.TrainingRuntime) { r.Labels[name] = value }
}

func TestWantsTwin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source client.Object
		want   bool
	}{
		"gone":          {nil, false},
		"ordinary":      {source(), true},
		"being deleted": {source(func(r *trainer.TrainingRuntime) { r.DeletionTimestamp = &cachetest.Noon }), false},
		"wants none":    {source(labelled(wellknown.LabelDerive, "false")), false},
		"asks for one":  {source(labelled(wellknown.LabelDerive, "true")), true},
		"a twin itself": {source(func(r *trainer.TrainingRuntime) { r.Annotations = map[string]string{wellknown.AnnotationTwinOf: "x"} }), false},
		"has our gate": {source(labelled(wellknown.LabelGate, "true"), func(r *trainer.TrainingRuntime) {
			twin, err := inject.Twin(&r.Spec, inject.Gate{Image: "gate"})
			if err != nil {
				t.Error(err)
				return
			}
			r.Spec = *twin
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := wantsTwin(c.source); got != c.want {
				t.Errorf("wantsTwin = %v, want %v", got, c.want)
			}
		})
	}
}

func TestTwinOf(t *testing.T) {
	t.Parallel()
	twinner := func(image string) *twinReconciler {
		return &twinReconciler{kind: trainer.TrainingRuntimeKind, gate: inject.Gate{Image: image}}
	}
	twinFrom := func(image string, changes ...func(*trainer.TrainingRuntime)) client.Object {
		twin, err := twinner(image).twinOf(source(changes...))
		if err != nil {
			t.Fatal(err)
		}
		return twin
	}
	first := twinFrom("gate:1", labelled("argocd.argoproj.io/instance", "platform"), labelled("app.kubernetes.io/managed-by", "Helm"))
	if got := kube.Qualified(first); got != "team-a/torch-data-cache" {
		t.Errorf("twin is %s, want team-a/torch-data-cache", got)
	}
	want := map[string]string{"trainer.kubeflow.org/framework": "torch", wellknown.LabelGate: "true", wellknown.LabelManagedBy: wellknown.ManagedBy}
	if diff := cmp.Diff(want, first.GetLabels()); diff != "" {
		t.Errorf("labels differ (-want +got):\n%s", diff)
	}
	if len(first.GetOwnerReferences()) > 0 || first.GetAnnotations()[wellknown.AnnotationTwinOf] != "torch" {
		t.Errorf("twin has owners %v and annotations %v, want none and its source's name", first.GetOwnerReferences(), first.GetAnnotations())
	}
	content := func(twin client.Object) string { return twin.GetAnnotations()[annotationContent] }
	for name, c := range map[string]struct {
		twin client.Object
		same bool
	}{
		"the same again":    {twinFrom("gate:1"), true},
		"another gate":      {twinFrom("gate:2"), false},
		"another label":     {twinFrom("gate:1", labelled("team", "a")), false},
		"another container": {twinFrom("gate:1", func(r *trainer.TrainingRuntime) { r.Spec.Template.Spec.ReplicatedJobs[0].Name = "other" }), false},
	} {
		if same := content(c.twin) == content(first); same != c.same {
			t.Errorf("%s: same content = %v, want %v", name, same, c.same)
		}
	}
}

func TestSourceRequests(t *testing.T) {
	t.Parallel()
	in := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: name}}
	}
	named := func(name string) *trainer.TrainingRuntime {
		return source(func(r *trainer.TrainingRuntime) { r.Name = name })
	}
	for name, want := range map[string][]reconcile.Request{
		"torch":            {in("torch")},
		"torch-data-cache": {in("torch-data-cache"), in("torch")},
		"-data-cache":      {in("-data-cache")},
	} {
		if diff := cmp.Diff(want, sourceRequests(t.Context(), named(name))); diff != "" {
			t.Errorf("%s: requests differ (-want +got):\n%s", name, diff)
		}
	}
}

func TestSourceOfJob(t *testing.T) {
	t.Parallel()
	job := func(kind, name string) *trainer.TrainJob {
		return trainJob(func(j *trainer.TrainJob) { j.Spec.RuntimeRef = trainer.RuntimeRef{Kind: &kind, Name: name} })
	}
	for name, c := range map[string]struct {
		kind string
		job  *trainer.TrainJob
		want []reconcile.Request
	}{
		"names a twin":           {trainer.TrainingRuntimeKind, job(trainer.TrainingRuntimeKind, "torch-data-cache"), []reconcile.Request{requestFor(types.NamespacedName{Namespace: "team-a", Name: "torch"})}},
		"names a cluster's twin": {trainer.ClusterTrainingRuntimeKind, job(trainer.ClusterTrainingRuntimeKind, "torch-data-cache"), []reconcile.Request{requestFor(types.NamespacedName{Name: "torch"})}},
		"of the other kind":      {trainer.TrainingRuntimeKind, job(trainer.ClusterTrainingRuntimeKind, "torch-data-cache"), nil},
		"names no twin":          {trainer.ClusterTrainingRuntimeKind, job(trainer.ClusterTrainingRuntimeKind, "torch"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &twinReconciler{kind: c.kind}
			if diff := cmp.Diff(c.want, r.sourceOfJob(t.Context(), c.job)); diff != "" {
				t.Errorf("requests differ (-want +got):\n%s", diff)
			}
		})
	}
}
