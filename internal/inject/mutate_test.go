// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

var admitted = Settings{Now: metav1.NewTime(time.Date(2026, 8, 21, 12, 0, 0, 0, time.UTC))}

func named(kind, name string) func(*trainer.TrainJob) {
	return func(job *trainer.TrainJob) {
		job.Spec.RuntimeRef = trainer.RuntimeRef{Name: name, Kind: new(kind), APIGroup: new("trainer.kubeflow.org")}
	}
}

// zoned adds our entry for jobs in front of the patches.
func zoned(cache, namespace string, jobs ...string) func(*trainer.TrainJob) {
	return func(job *trainer.TrainJob) {
		job.Spec.RuntimePatches = append([]trainer.RuntimePatch{zonePatchOf(nil, cache, namespace, jobs...)}, job.Spec.RuntimePatches...)
	}
}

// placed adds our entry for the job node, with an affinity to pods with the placement label.
func placed(unique string) func(*trainer.TrainJob) {
	return func(job *trainer.TrainJob) {
		patch := zonePatchOf(nil, "", "", "node")
		patch.Time = nil
		node := patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
		term := &node.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0]
		term.PodAffinityTerm.LabelSelector.MatchLabels = map[string]string{"datacache.kubeflow.org/placement": unique}
		job.Spec.RuntimePatches = []trainer.RuntimePatch{patch}
	}
}

func zonePatchOf(before []corev1.WeightedPodAffinityTerm, cache, namespace string, jobs ...string) trainer.RuntimePatch {
	term := corev1.WeightedPodAffinityTerm{Weight: 50, PodAffinityTerm: corev1.PodAffinityTerm{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"datacache.kubeflow.org/cache": cache}},
		TopologyKey:   "topology.kubernetes.io/zone",
	}}
	if namespace != "" {
		term.PodAffinityTerm.Namespaces = []string{namespace}
	}
	var patches []trainer.ReplicatedJobPatch
	for _, name := range jobs {
		patches = append(patches, trainer.ReplicatedJobPatch{Name: name, Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{
			Template: &trainer.PodTemplatePatch{Spec: &trainer.PodSpecPatch{Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: append(before, term),
			}}}},
		}}})
	}
	return trainer.RuntimePatch{Manager: "datacache.kubeflow.org/webhook", Time: admitted.Now.DeepCopy(), TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{
		Template: &trainer.JobSetTemplatePatch{Spec: &trainer.JobSetSpecPatch{ReplicatedJobs: patches}},
	}}
}

// queued adds what Kueue writes.
func queued(job *trainer.TrainJob) {
	job.Spec.RuntimePatches = append(job.Spec.RuntimePatches, trainer.RuntimePatch{Manager: "kueue.x-k8s.io/manager", Time: &metav1.Time{Time: time.Unix(1, 0)}})
}

func TestMutateCreate(t *testing.T) {
	const cluster, namespaced = "ClusterTrainingRuntime", "TrainingRuntime"
	zonedRuntime := func() *request.Runtime {
		rt := stock(t, "torch-distributed")
		rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 7}},
		}}
		return rt
	}
	own := twin(t, stock(t, "torch-distributed"))
	tests := []struct {
		name     string
		job      *trainer.TrainJob
		rt       *request.Runtime
		settings Settings
		want     *trainer.TrainJob
	}{
		{"a runtime without a step", trainJob(table, location), stock(t, "torch-distributed"), admitted,
			edited(trainJob(table, location), named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"), zoned("train", "", "node"))},
		{"upstream's step", edited(trainJob(table, location), named(cluster, "torch-distributed-with-cache")), stock(t, "torch-distributed-with-cache"), admitted,
			edited(trainJob(table, location), named(cluster, "torch-distributed-with-cache-data-cache"),
				annotated(wellknown.AnnotationRuntime, "torch-distributed-with-cache"), zoned("train", "", "node"))},
		{"our own step", edited(trainJob(table, location), named(cluster, own.Name)), own, admitted,
			edited(trainJob(table, location), named(cluster, own.Name), zoned("train", "", "node"))},
		{"a namespaced runtime", edited(trainJob(table, location), named(namespaced, "torch-distributed")),
			&request.Runtime{Kind: namespaced, Name: "torch-distributed", Spec: stock(t, "torch-distributed").Spec}, admitted,
			edited(trainJob(table, location), named(namespaced, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "TrainingRuntime/torch-distributed"),
				zoned("train", "", "node"))},
		{"no runtime, no defaults of the API server", edited(trainJob(table, location), func(job *trainer.TrainJob) { job.Spec.RuntimeRef = trainer.RuntimeRef{} }),
			stock(t, "torch-distributed"), admitted,
			edited(trainJob(table, location), named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"), zoned("train", "", "node"))},
		{"MPI: every job that trains", edited(trainJob(table, location), named(cluster, "deepspeed-distributed")), stock(t, "deepspeed-distributed"), admitted,
			edited(trainJob(table, location), named(cluster, "deepspeed-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "deepspeed-distributed"),
				zoned("train", "", "node", "launcher"))},
		{"the runtime's own affinity stays", trainJob(table, location), zonedRuntime(), admitted,
			edited(trainJob(table, location), named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"),
				func(job *trainer.TrainJob) {
					job.Spec.RuntimePatches = []trainer.RuntimePatch{zonePatchOf([]corev1.WeightedPodAffinityTerm{{Weight: 7}}, "train", "", "node")}
				})},
		{"patches of others stay, behind ours", edited(trainJob(table, location), queued), stock(t, "torch-distributed"), admitted,
			edited(trainJob(table, location), queued, named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"), zoned("train", "", "node"))},
		{"no affinity wanted", trainJob(table, location), stock(t, "torch-distributed"), Settings{NoZoneAffinity: true},
			edited(trainJob(table, location), named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"))},
		{"generateName, without a text of its own", edited(trainJob(table, location), generated), stock(t, "torch-distributed"), admitted,
			edited(trainJob(table, location), generated, named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"))},
		{"generateName: by a label of the cache's own", edited(trainJob(table, location), generated), stock(t, "torch-distributed"), Settings{Unique: "uid-1"},
			edited(trainJob(table, location), generated, named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"),
				annotated(wellknown.AnnotationPlacement, "uid-1"), placed("uid-1"))},
		{"generateName, shared cache", edited(trainJob(table, location, "CACHE_SCOPE=namespace"), generated), stock(t, "torch-distributed"), admitted,
			edited(trainJob(table, location, "CACHE_SCOPE=namespace"), generated, named(cluster, "torch-distributed-data-cache"),
				annotated(wellknown.AnnotationRuntime, "torch-distributed"), zoned("shared-6ac6a06fba48dc9a", "", "node"))},
		{"a cache of another namespace", trainJob("datacache://team-b/reviews"), stock(t, "torch-distributed"), admitted,
			edited(trainJob("datacache://team-b/reviews"), named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"),
				zoned("reviews", "team-b", "node"))},
		{"several caches, the zone of the first", trainJob("datacache://web,team-b/code"), stock(t, "torch-distributed"), admitted,
			edited(trainJob("datacache://web,team-b/code"), named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"),
				zoned("web", "", "node"))},
		{"credentials", withSecret(trainJob(table, location), "keys"), own, Settings{NoZoneAffinity: true},
			edited(trainJob(table, location), annotated(wellknown.AnnotationSecret, "keys"))},
		{"credentials where none belong, for Validate to refuse", withSecret(trainJob("datacache://reviews"), "keys"), own, Settings{NoZoneAffinity: true},
			withSecret(trainJob("datacache://reviews"), "keys")},
		{"queued by another cluster", edited(trainJob(table, location), multikueue), stock(t, "torch-distributed"), Settings{NoZoneAffinity: true},
			edited(trainJob(table, location), multikueue, named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"))},
		{"what can't be read, for Validate to refuse", trainJob("cache://"), stock(t, "torch-distributed"), admitted,
			edited(trainJob("cache://"), named(cluster, "torch-distributed-data-cache"), annotated(wellknown.AnnotationRuntime, "torch-distributed"))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.settings.NoCredentials = true // of which TestCredentials is
			expect(t, mutate(tt.job, tt.rt, tt.settings))
			if diff := cmp.Diff(tt.want, tt.job); diff != "" {
				t.Errorf("TrainJob (-want +got):\n%s", diff)
			}
			rt := tt.rt
			if !request.HasGate(rt.Labels, rt.Spec) {
				rt = twin(t, rt)
			}
			later := tt.settings
			if later.Unique != "" {
				later.Unique = "of another admission request"
			}
			if !later.Now.IsZero() {
				later.Now.Time = later.Now.Add(time.Minute)
			}
			expect(t, mutate(tt.job, rt, later))
			if diff := cmp.Diff(tt.want, tt.job); diff != "" {
				t.Errorf("TrainJob, mutated again (-want +got):\n%s", diff)
			}
		})
	}
}

func generated(job *trainer.TrainJob) { job.Name, job.GenerateName = "", "train-" }

func multikueue(job *trainer.TrainJob) { job.Spec.ManagedBy = new("kueue.x-k8s.io/multikueue") }

func TestMutateRefuses(t *testing.T) {
	gang := stock(t, "torch-distributed")
	gang.Spec.PodGroupPolicy = &trainer.PodGroupPolicy{PodGroupPolicySource: trainer.PodGroupPolicySource{Volcano: &trainer.VolcanoPodGroupPolicySource{}}}
	underived := stock(t, "torch-distributed")
	underived.Labels = map[string]string{wellknown.LabelDerive: "false"}
	tests := []struct {
		name string
		job  *trainer.TrainJob
		rt   *request.Runtime
		want []string
	}{
		{"gang", trainJob(table, location), gang, []string{"spec.runtimeRef.name", `"torch-distributed"`, "podGroupPolicy", "serves no gangs", "component gangs"}},
		{"not to be derived", trainJob(table, location), underived, []string{"spec.runtimeRef.name", "datacache.kubeflow.org/derive=false", "name another"}},
		{"no such runtime", trainJob(table, location), nil, []string{"spec.runtimeRef.name", `"torch-distributed"`, "no such ClusterTrainingRuntime", "install it or name another"}},
		{"no default runtime", edited(trainJob(table, location), func(job *trainer.TrainJob) { job.Spec.RuntimeRef = trainer.RuntimeRef{} }), nil,
			[]string{"spec.runtimeRef.name", `"torch-distributed"`, "it is the default"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { expect(t, mutate(tt.job, tt.rt, admitted), tt.want) })
	}
	serving := admitted
	serving.Gangs = true
	if errs := mutate(trainJob(table, location), gang, serving); len(errs) > 0 {
		t.Errorf("where gangs are served: %v", errs)
	}
}

// TestMutateUpdate updates a TrainJob as admission made it, with an object from a client that doesn't know our additions.
func TestMutateUpdate(t *testing.T) {
	user := func() *trainer.TrainJob { return withSecret(trainJob(table, location), "keys") }
	stored := func() *trainer.TrainJob {
		job := user()
		expect(t, mutate(job, stock(t, "torch-distributed"), admitted))
		job.Spec.Suspend = new(false)
		return job
	}
	tests := []struct {
		name     string
		old, job *trainer.TrainJob
		want     *trainer.TrainJob
	}{
		{"nothing changed", stored(), stored(), stored()},
		{"the user's own object again", stored(), edited(user(), suspended), edited(stored(), suspended)},
		{"its runtime left out", stored(), edited(user(), func(job *trainer.TrainJob) {
			job.Spec.RuntimeRef = trainer.RuntimeRef{}
			job.Spec.Suspend = new(false)
		}), stored()},
		{"suspended", stored(), edited(stored(), suspended), edited(stored(), suspended)},
		{"resumed", edited(stored(), suspended), stored(), stored()},
		{"Kueue's patch comes, and the user's object again", edited(stored(), queued), edited(user(), queued, suspended), edited(stored(), queued, suspended)},
		{"our patch lay behind another",
			edited(stored(), func(job *trainer.TrainJob) {
				first := job.Spec.RuntimePatches[0]
				job.Spec.RuntimePatches = nil
				queued(job)
				job.Spec.RuntimePatches = append(job.Spec.RuntimePatches, first)
			}),
			edited(user(), queued, suspended),
			edited(stored(), suspended, func(job *trainer.TrainJob) {
				first := job.Spec.RuntimePatches[0]
				job.Spec.RuntimePatches = nil
				queued(job)
				job.Spec.RuntimePatches = append(job.Spec.RuntimePatches, first)
			})},
		{"ours was changed", stored(),
			edited(stored(), func(job *trainer.TrainJob) {
				job.Spec.RuntimePatches[0].TrainingRuntimeSpec = nil
				job.Annotations[wellknown.AnnotationRuntime] = "x"
			}), stored()},
		{"labels and annotations are the user's", stored(), edited(stored(), annotated("a", "b")), edited(stored(), annotated("a", "b"))},
		{"another runtime, for the API server to refuse", stored(), edited(stored(), named("ClusterTrainingRuntime", "other")), edited(stored(), named("ClusterTrainingRuntime", "other"))},
		{"another secret, for the API server to refuse", stored(), withSecret(stored(), "other"), withSecret(stored(), "other")},
		{"its cache is its runtime's", edited(bare(), zoned("train", "", "node")), edited(bare(), suspended), edited(bare(), zoned("train", "", "node"), suspended)},
		{"no cache at all", bare(), edited(bare(), suspended), edited(bare(), suspended)},
		{"its placement", edited(trainJob(table, location), annotated(wellknown.AnnotationPlacement, "uid-1")), trainJob(table, location),
			edited(trainJob(table, location), annotated(wellknown.AnnotationPlacement, "uid-1"))},
		{"from before datacache was installed", trainJob(table, location), edited(trainJob(table, location), suspended), edited(trainJob(table, location), suspended)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, again := range []string{"once", "twice"} {
				expect(t, Restore(tt.job, tt.old))
				if diff := cmp.Diff(tt.want, tt.job); diff != "" {
					t.Errorf("TrainJob, %s (-want +got):\n%s", again, diff)
				}
			}
		})
	}
}

func suspended(job *trainer.TrainJob) { job.Spec.Suspend = new(true) }

func TestMutateUpdateRefuses(t *testing.T) {
	none := trainJob(table, location)
	none.Spec.Initializer = nil
	for name, tt := range map[string]struct{ job, old *trainer.TrainJob }{
		"added":      {trainJob(table, location), none},
		"taken away": {none, trainJob(table, location)},
		"changed":    {trainJob(table, location), trainJob("hf://x/y")},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, Restore(tt.job, tt.old), []string{"spec.initializer.dataset: Forbidden", "make a new one"})
		})
	}
}
