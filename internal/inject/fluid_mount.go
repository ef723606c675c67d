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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// cacheNameVariable tells the name to every container.
	cacheNameVariable = "DATACACHE_NAME"
	// cacheVolume is the volume in which a cache's files are mounted.
	cacheVolume = "datacache"
	// statusName is the variable by which the gate learns where it can ask for the state of a cache without a head
	// (cacheserver initializer --status). Only admission sets it.
	statusName = "CACHE_STATUS"
)

// mounted is a cache whose files are mounted into a TrainJob's pods.
type mounted struct{ namespace, name, path string }

// mountOf returns the cache to mount: of files that the TrainJob names, or of the DataCache that it names, if that caches files. It is
// nil for a cache of a table, and for an invalid request, which Validate reports.
func mountOf(job *trainer.TrainJob, rt *Runtime, settings Settings) *mounted {
	namespace := job.Namespace
	if namespace == "" {
		namespace = settings.Namespace
	}
	if cache := settings.Cache; isReference(job) && cache != nil && cache.Spec.Fluid != nil && cache.Namespace == namespace {
		return &mounted{namespace, cache.Name, cache.Spec.Fluid.MountPath}
	}
	if !isFluid(job) {
		return nil
	}
	request, errs := Parse(job, StepOf(rt))
	if len(errs) > 0 {
		return nil
	}
	return &mounted{namespace, request.Name, request.Cache.Fluid.MountPath}
}

// mount adds the cache's files to every container of every job that is no initializer, and tells the gate where to ask for its state.
func (m *mounted) mount(job *trainer.TrainJob, rt *Runtime, settings Settings) {
	patch := emptyPatch(settings)
	patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs = m.patches(rt)
	setPatch(job, *patch, 0)
	if settings.StatusURL != "" {
		dataset := job.Spec.Initializer.Dataset
		dataset.Env = withVariable(dataset.Env, statusName, fmt.Sprintf("%s/status/%s/%s", strings.TrimSuffix(settings.StatusURL, "/"), m.namespace, m.name))
	}
	if job.Spec.Trainer == nil {
		job.Spec.Trainer = &trainer.Trainer{}
	}
	job.Spec.Trainer.Env = withVariable(job.Spec.Trainer.Env, cacheNameVariable, m.name) // Trainer rejects runtimePatches that set env of the container node
}

func (m *mounted) patches(rt *Runtime) []trainer.ReplicatedJobPatch {
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

// restoreVariables puts back the variables that mount set.
func restoreVariables(job, old *trainer.TrainJob) {
	if v := variable(dataset(old).Env, statusName); v != "" {
		dataset(job).Env = withVariable(dataset(job).Env, statusName, v)
	}
	if old.Spec.Trainer == nil || patchOf(old) < 0 {
		return
	}
	if v := variable(old.Spec.Trainer.Env, cacheNameVariable); v != "" {
		if job.Spec.Trainer == nil {
			job.Spec.Trainer = &trainer.Trainer{}
		}
		job.Spec.Trainer.Env = withVariable(job.Spec.Trainer.Env, cacheNameVariable, v)
	}
}

func variable(env []corev1.EnvVar, name string) string {
	at := slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == name })
	if at < 0 {
		return ""
	}
	return env[at].Value
}

// CheckMount rejects a TrainJob into whose pods the cache's files can't be mounted at mountPath, because a container of the runtime mounts
// something there already, or the pod has a volume of our name.
func CheckMount(job *trainer.TrainJob, rt *Runtime, mountPath string) field.ErrorList {
	if rt == nil {
		return nil
	}
	for i := range rt.Spec.Template.Spec.ReplicatedJobs {
		target := &rt.Spec.Template.Spec.ReplicatedJobs[i]
		if isInitializer(target) {
			continue
		}
		if reason := takenMount(target, mountPath); reason != "" {
			return field.ErrorList{field.Invalid(mountField(job), mountPath, fmt.Sprintf("the runtime %s %s", rt.Name, reason))}
		}
	}
	return nil
}

// mountField is the field that says where files are mounted.
func mountField(job *trainer.TrainJob) *field.Path {
	if at := slices.IndexFunc(dataset(job).Env, func(v corev1.EnvVar) bool { return v.Name == "MOUNT_PATH" && v.Value != "" }); at >= 0 {
		return envPath.Index(at).Child("value")
	}
	return uriPath
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

// CheckCache rejects a TrainJob whose request can't be served by the DataCache of the name that it asks for, which may be nil.
func CheckCache(asked *Request, cache *v1alpha1.DataCache) field.ErrorList {
	if asked.Cache.Fluid == nil || cache == nil {
		return nil
	}
	difference := FluidDifference(cache.Spec.Fluid, asked.Cache.Fluid)
	if difference == "" {
		return nil
	}
	return field.ErrorList{field.Invalid(envPath, "CACHE_NAME="+asked.Name, fmt.Sprintf(
		"there is a DataCache of this name whose %s: give CACHE_NAME another name, or ask for that one by %s%s", difference, referenceScheme, asked.Name))}
}

// ReferenceOf is the DataCache that a TrainJob names by datacache://, nil if it names none or several. namespace is the TrainJob's.
func ReferenceOf(job *trainer.TrainJob, namespace string) *types.NamespacedName {
	if !isReference(job) {
		return nil
	}
	references, _ := parseReferences(storageURI(job), namespace)
	if len(references) != 1 {
		return nil
	}
	return &references[0].Key
}

// FilesOf returns the files that a valid request asks for, with the field that asks for them and its value; nil for a table. named is the
// DataCache that exists by the name that the TrainJob gives, or nil.
func FilesOf(job *trainer.TrainJob, asked *Request, named *v1alpha1.DataCache) (at *field.Path, value string, files *v1alpha1.FluidCache) {
	if files = asked.Cache.Fluid; files == nil && named != nil {
		files = named.Spec.Fluid
	}
	return uriPath, storageURI(job), files
}
