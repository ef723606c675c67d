// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"slices"
	"strings"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// cacheNameVariable tells the name to every container.
	cacheNameVariable = "DATACACHE_NAME"
	// cacheVolume is the volume in which a cache's files are mounted.
	cacheVolume = "datacache"
)

// mounted are the files of a cache that are mounted into a TrainJob's pods.
type mounted struct{ namespace, name, path string }

// filesOf returns the files to mount: those that the TrainJob names, or those of cache, the DataCache that it names. It is nil for a cache of
// a table, and for an invalid request.
func filesOf(parsed *request.Job, asked *request.Request, cache *v1alpha1.DataCache) *mounted {
	switch {
	case parsed.Kind == request.Named && cache != nil && cache.Spec.Fluid != nil && cache.Namespace == parsed.Namespace:
		return &mounted{cache.Namespace, cache.Name, cache.Spec.Fluid.MountPath}
	case asked != nil && asked.Cache.Fluid != nil:
		return &mounted{parsed.Namespace, asked.Name, asked.Cache.Fluid.MountPath}
	}
	return nil
}

// mount adds the cache's files to every container of every job that is no initializer, and tells the gate where to ask for its state.
func (m *mounted) mount(job *trainer.TrainJob, rt *request.Runtime, settings Settings) {
	patch := emptyPatch(settings)
	patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs = m.patches(rt)
	setPatch(job, *patch, 0)
	if settings.StatusURL != "" {
		dataset := job.Spec.Initializer.Dataset
		dataset.Env = withVariable(dataset.Env, request.StatusVariable, fmt.Sprintf("%s/status/%s/%s", strings.TrimSuffix(settings.StatusURL, "/"), m.namespace, m.name))
	}
	if job.Spec.Trainer == nil {
		job.Spec.Trainer = &trainer.Trainer{}
	}
	job.Spec.Trainer.Env = withVariable(job.Spec.Trainer.Env, cacheNameVariable, m.name) // Trainer rejects runtimePatches that set env of the container node
}

func (m *mounted) patches(rt *request.Runtime) []trainer.ReplicatedJobPatch {
	var jobs []trainer.ReplicatedJobPatch
	for i := range rt.Spec.Template.Spec.ReplicatedJobs {
		target := &rt.Spec.Template.Spec.ReplicatedJobs[i]
		if isInitializer(target) {
			continue
		}
		pod := &target.Template.Spec.Template.Spec
		jobs = append(jobs, trainer.ReplicatedJobPatch{Name: target.Name, Template: &trainer.JobTemplatePatch{
			Spec: &trainer.JobSpecPatch{Template: &trainer.PodTemplatePatch{
				Metadata: &metav1.ObjectMeta{Annotations: map[string]string{wellknown.AnnotationCacheName: m.name}},
				Spec: &trainer.PodSpecPatch{
					Volumes: []corev1.Volume{{Name: cacheVolume, VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: m.name, ReadOnly: true},
					}}},
					InitContainers: m.containers(pod.InitContainers),
					Containers:     m.containers(pod.Containers),
				},
			}},
		}})
	}
	return jobs
}

func (m *mounted) containers(all []corev1.Container) []trainer.ContainerPatch {
	var patches []trainer.ContainerPatch
	for i := range all {
		patch := trainer.ContainerPatch{
			Name:         all[i].Name,
			VolumeMounts: []corev1.VolumeMount{{Name: cacheVolume, MountPath: m.path, ReadOnly: true}},
		}
		if patch.Name != wellknown.NodeName {
			patch.Env = []corev1.EnvVar{{Name: cacheNameVariable, Value: m.name}}
		}
		patches = append(patches, patch)
	}
	return patches
}

// withVariable returns the environment with the variable set.
func withVariable(env []corev1.EnvVar, name, value string) []corev1.EnvVar {
	set := corev1.EnvVar{Name: name, Value: value}
	if at := slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == name }); at >= 0 {
		env[at] = set
		return env
	}
	return append(env, set)
}

// CheckMount rejects a TrainJob into whose pods the cache's files can't be mounted at mountPath, because a container of the runtime mounts
// something there already, or the pod has a volume of our name. at is the field that says where files are mounted.
func CheckMount(at *field.Path, rt *request.Runtime, mountPath string) field.ErrorList {
	if rt == nil {
		return nil
	}
	for i := range rt.Spec.Template.Spec.ReplicatedJobs {
		target := &rt.Spec.Template.Spec.ReplicatedJobs[i]
		if isInitializer(target) {
			continue
		}
		if reason := takenMount(target, mountPath); reason != "" {
			return field.ErrorList{field.Invalid(at, mountPath, fmt.Sprintf("the runtime %s %s", rt.Name, reason))}
		}
	}
	return nil
}

func takenMount(job *jobset.ReplicatedJob, mountPath string) string {
	pod := &job.Template.Spec.Template.Spec
	for i := range pod.Volumes {
		if pod.Volumes[i].Name == cacheVolume {
			return fmt.Sprintf("has a volume named %s in its job %s, which is the name of the cache's: rename that volume", cacheVolume, job.Name)
		}
	}
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			for _, mount := range containers[i].VolumeMounts {
				if strings.TrimSuffix(mount.MountPath, "/") == mountPath {
					return fmt.Sprintf("mounts its volume %s at this path in the container %s: set MOUNT_PATH to another path", mount.Name, containers[i].Name)
				}
			}
		}
	}
	return ""
}
