// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// HubMirror is a mirror of the Hugging Face hub that TrainJobs use (docs/mirrors.md). The zero value is none.
type HubMirror struct {
	// Endpoint is the value of HF_ENDPOINT.
	Endpoint string
	// Audience is that of the ServiceAccount token with which the pods identify themselves to the mirror.
	Audience string
}

// Variables of huggingface_hub (its module constants), and the volume with the token.
const (
	hubEndpoint  = "HF_ENDPOINT"
	hubTokenPath = "HF_TOKEN_PATH"
	hubVolume    = "datacache-hub-token"
	hubFolder    = "/var/run/datacache-hub"
	// hubTokenSeconds is the token's lifetime; the kubelet renews it, and huggingface_hub reads it anew for each request.
	hubTokenSeconds = 3600
)

// UseHub edits a new TrainJob in place so that its initializers and its trainer use the mirror of the hub; it is idempotent. rt is the
// TrainJob's runtime, and kind what it names by its dataset initializer. A container whose own environment, or that of the runtime, names a hub stays as it is, and so does the token of
// one that has its own. Call it after Mutate.
func UseHub(job *trainer.TrainJob, kind request.Kind, rt *request.Runtime, settings Settings) {
	mirror := settings.HubMirror
	if mirror.Endpoint == "" || rt == nil {
		return
	}
	var patched []trainer.ReplicatedJobPatch
	jobs := rt.Spec.Template.Spec.ReplicatedJobs
	for i := range jobs {
		for _, name := range []string{wellknown.StepName, modelStep, wellknown.NodeName} {
			c := request.Container(&jobs[i], name)
			if c == nil || !useHub(job, kind, c, mirror.Endpoint) {
				continue
			}
			patched = append(patched, tokenPatch(&jobs[i], name, mirror.Audience))
		}
	}
	if len(patched) > 0 {
		addPatches(job, patched, settings)
	}
}

// useHub adds the variables to the part of the TrainJob that sets the container's environment, and reports whether it needs the token's
// volume.
func useHub(job *trainer.TrainJob, kind request.Kind, c *corev1.Container, endpoint string) bool {
	env, ownToken := hubEnv(job, kind, c.Name)
	if env == nil {
		return false
	}
	ours := slices.ContainsFunc(*env, func(v corev1.EnvVar) bool { return v.Name == hubTokenPath && v.Value == hubFolder+"/token" })
	if !ours && names(c.Env, hubEndpoint) || names(*env, hubEndpoint) {
		return ours
	}
	*env = append(*env, corev1.EnvVar{Name: hubEndpoint, Value: endpoint})
	for _, name := range []string{"HF_TOKEN", hubTokenPath, "HF_HOME"} {
		ownToken = ownToken || names(*env, name) || names(c.Env, name)
	}
	if !ownToken {
		*env = append(*env, corev1.EnvVar{Name: hubTokenPath, Value: hubFolder + "/token"})
	}
	return !ownToken
}

// hubEnv returns the environment in the TrainJob that Trainer gives to a container; nil if the TrainJob does not have that part, or if
// the part is a request for a cache. ownToken says that the part has credentials of its own, with which the program logs in: that writes
// to the file of HF_TOKEN_PATH.
func hubEnv(job *trainer.TrainJob, kind request.Kind, container string) (env *[]corev1.EnvVar, ownToken bool) {
	initializer := ptr.Deref(job.Spec.Initializer, trainer.Initializer{})
	switch {
	case container == wellknown.NodeName:
		if job.Spec.Trainer == nil {
			job.Spec.Trainer = &trainer.Trainer{}
		}
		return &job.Spec.Trainer.Env, false
	case container == wellknown.StepName && initializer.Dataset != nil && kind == request.Nothing:
		return &initializer.Dataset.Env, initializer.Dataset.SecretRef != nil
	case container == modelStep && initializer.Model != nil:
		return &initializer.Model.Env, initializer.Model.SecretRef != nil
	default:
		return nil, false
	}
}

func names(env []corev1.EnvVar, name string) bool {
	return slices.ContainsFunc(env, func(v corev1.EnvVar) bool { return v.Name == name })
}

// tokenPatch mounts a ServiceAccount token for the mirror into a container.
func tokenPatch(job *jobset.ReplicatedJob, container, audience string) trainer.ReplicatedJobPatch {
	volume := corev1.Volume{Name: hubVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
		ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience, ExpirationSeconds: ptr.To[int64](hubTokenSeconds), Path: "token"},
	}}}}}
	return trainer.ReplicatedJobPatch{Name: job.Name, Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{
		Template: &trainer.PodTemplatePatch{Spec: &trainer.PodSpecPatch{
			Volumes:    []corev1.Volume{volume},
			Containers: []trainer.ContainerPatch{{Name: container, VolumeMounts: []corev1.VolumeMount{{Name: hubVolume, MountPath: hubFolder, ReadOnly: true}}}},
		}},
	}}}
}

// addPatches adds volumes and mounts to our entry of spec.runtimePatches.
func addPatches(job *trainer.TrainJob, patched []trainer.ReplicatedJobPatch, settings Settings) {
	patch := emptyPatch(settings)
	if at := patchOf(job); at >= 0 {
		patch = job.Spec.RuntimePatches[at].DeepCopy()
	}
	jobs := &patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs
	for _, each := range patched {
		at := slices.IndexFunc(*jobs, func(p trainer.ReplicatedJobPatch) bool { return p.Name == each.Name })
		if at < 0 {
			*jobs = append(*jobs, each)
			continue
		}
		spec, more := (*jobs)[at].Template.Spec.Template.Spec, each.Template.Spec.Template.Spec
		if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == more.Volumes[0].Name }) {
			spec.Volumes = append(spec.Volumes, more.Volumes...)
		}
		spec.Containers = withMounts(spec.Containers, more.Containers[0])
	}
	setPatch(job, *patch, 0)
}

// withMounts adds the mounts of one more patch to those of the same container, or the patch if there is none.
func withMounts(patches []trainer.ContainerPatch, more trainer.ContainerPatch) []trainer.ContainerPatch {
	at := slices.IndexFunc(patches, func(c trainer.ContainerPatch) bool { return c.Name == more.Name })
	if at < 0 {
		return append(patches, more)
	}
	for _, m := range more.VolumeMounts {
		if !slices.ContainsFunc(patches[at].VolumeMounts, func(have corev1.VolumeMount) bool { return have.Name == m.Name }) {
			patches[at].VolumeMounts = append(patches[at].VolumeMounts, m)
		}
	}
	return patches
}
