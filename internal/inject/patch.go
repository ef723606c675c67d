// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// zoneWeight is the scheduler weight, out of 100, of the cache's zone: more than spreading, less than a user's preference of weight
// 100.
const zoneWeight = 50

// patchPods adds our entry of spec.runtimePatches: training pods get the credentials for their caches, and prefer the zone of the first
// one's pods.
func patchPods(job *trainer.TrainJob, parsed *request.Job, asked *request.Request, rt *request.Runtime, settings Settings) {
	id := identify(job, parsed.Name, settings.Unique)
	volume := credentials(parsed, asked, id, settings)
	term, near := zoneTerm(parsed, asked, id)
	near = near && !settings.NoZoneAffinity
	var jobs []trainer.ReplicatedJobPatch
	for i := range rt.Spec.Template.Spec.ReplicatedJobs {
		target := &rt.Spec.Template.Spec.ReplicatedJobs[i]
		if isInitializer(target) || request.Container(target, wellknown.NodeName) == nil || volume == nil && !near {
			continue
		}
		pod := &trainer.PodSpecPatch{}
		if near {
			pod.Affinity = withTerm(target, term)
		}
		if volume != nil {
			pod.Volumes, pod.Containers = []corev1.Volume{*volume}, []trainer.ContainerPatch{{Name: wellknown.NodeName, VolumeMounts: []corev1.VolumeMount{credentialsMount}}}
		}
		template := &trainer.PodTemplatePatch{Spec: pod}
		if volume != nil && asked.Dataset != "" { // the volume has a file of it
			template.Metadata = &metav1.ObjectMeta{Annotations: map[string]string{wellknown.AnnotationDataset: asked.Dataset}}
		}
		jobs = append(jobs, trainer.ReplicatedJobPatch{Name: target.Name, Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{Template: template}}})
	}
	if len(jobs) == 0 {
		return
	}
	patch := emptyPatch(settings)
	patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs = jobs
	setPatch(job, *patch, 0)
}

// identify returns a text that tells the TrainJob from others of its namespace: its name, or unique, which it keeps in AnnotationPlacement,
// if it has no name yet; "" if it has neither. The API server may call admission twice for one TrainJob: the first call decides.
func identify(job *trainer.TrainJob, name, unique string) string {
	kept := job.Annotations[wellknown.AnnotationPlacement]
	switch {
	case patchOf(job) >= 0 && kept != "":
		return kept
	case name != "":
		delete(job.Annotations, wellknown.AnnotationPlacement) // somebody else's
		return name
	case unique != "":
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, wellknown.AnnotationPlacement, unique)
	}
	return unique
}

// emptyPatch returns our entry of spec.runtimePatches, for no job yet.
func emptyPatch(settings Settings) *trainer.RuntimePatch {
	patch := &trainer.RuntimePatch{Manager: wellknown.PatchManager, TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{
		Template: &trainer.JobSetTemplatePatch{Spec: &trainer.JobSetSpecPatch{}},
	}}
	if !settings.Now.IsZero() {
		patch.Time = settings.Now.DeepCopy()
	}
	return patch
}

// zoneTerm returns an affinity to the zone of the pods of the TrainJob's cache; ok is false if it has none to find them by. A TrainJob's own
// cache has its name, which does not exist yet with generateName: then the pods get a unique label.
func zoneTerm(parsed *request.Job, asked *request.Request, id string) (term corev1.WeightedPodAffinityTerm, ok bool) {
	label, name, namespaces := wellknown.LabelCache, parsed.Name, []string(nil)
	switch {
	case len(asked.References) > 0:
		first := asked.References[0].Key // of several caches, one decides the zone
		name = first.Name
		if first.Namespace != parsed.Namespace {
			namespaces = []string{first.Namespace}
		}
	case asked.Shared:
		name = asked.Name
	case name == "":
		label, name = wellknown.LabelPlacement, id
	}
	return corev1.WeightedPodAffinityTerm{Weight: zoneWeight, PodAffinityTerm: corev1.PodAffinityTerm{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: name}},
		Namespaces:    namespaces,
		TopologyKey:   corev1.LabelTopologyZone,
	}}, name != ""
}

// HasZone reports whether training pods of a JobSet prefer the zone of a cache.
func HasZone(spec *jobset.JobSetSpec) bool {
	return slices.ContainsFunc(spec.ReplicatedJobs, func(job jobset.ReplicatedJob) bool {
		affinity := job.Template.Spec.Template.Spec.Affinity
		return affinity != nil && affinity.PodAffinity != nil && slices.ContainsFunc(
			affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, isZoneTerm)
	})
}

func isZoneTerm(term corev1.WeightedPodAffinityTerm) bool {
	selector := term.PodAffinityTerm.LabelSelector
	return selector != nil && (selector.MatchLabels[wellknown.LabelCache] != "" || selector.MatchLabels[wellknown.LabelPlacement] != "")
}

// withTerm returns an affinity that, merged into the job's, adds the term. It repeats the runtime's terms, since merging replaces the
// list.
func withTerm(job *jobset.ReplicatedJob, term corev1.WeightedPodAffinityTerm) *corev1.Affinity {
	var terms []corev1.WeightedPodAffinityTerm
	if own := job.Template.Spec.Template.Spec.Affinity; own != nil && own.PodAffinity != nil {
		for _, t := range own.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, *t.DeepCopy())
		}
	}
	return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: append(terms, term)}}
}

// patchOf is the index of our entry in spec.runtimePatches, -1 if there is none.
func patchOf(job *trainer.TrainJob) int {
	return slices.IndexFunc(job.Spec.RuntimePatches, func(p trainer.RuntimePatch) bool { return p.Manager == wellknown.PatchManager })
}

// setPatch replaces our entry, or inserts it at the given index, and keeps its timestamp if nothing else changed. New entries are
// inserted first, so that later patches of users and queues override them.
func setPatch(job *trainer.TrainJob, patch trainer.RuntimePatch, place int) {
	patches := job.Spec.RuntimePatches
	at := patchOf(job)
	if at < 0 {
		job.Spec.RuntimePatches = slices.Insert(patches, min(place, len(patches)), *patch.DeepCopy())
		return
	}
	stamped := patch
	if stamped.Time = patches[at].Time; equality.Semantic.DeepEqual(stamped, patches[at]) {
		return
	}
	patches[at] = *patch.DeepCopy()
}
