// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Gate is the platform's configuration of the step that waits for a cache. Only Image is required.
type Gate struct {
	// Image of the cache server.
	Image string
	// ImagePullPolicy and ImagePullSecrets of the step; empty: the kubelet's default, and none.
	ImagePullPolicy  corev1.PullPolicy
	ImagePullSecrets []corev1.LocalObjectReference
	// Env is added to the step: plain values that are not parameters of caches; the runtime's own variables take precedence.
	Env []corev1.EnvVar
	// Resources of the step. Defaults: requests of 100m cpu and 64Mi memory, limits of 1 cpu and 64Mi memory.
	Resources corev1.ResourceRequirements
}

const (
	// gateCommand is the image's command (cmd/cacheserver) that waits.
	gateCommand = "initializer"
	// stepMount is where Trainer's own initializers mount the volume that Trainer's webhook requires of the step; the gate does not
	// use it.
	stepMount = "/workspace"
	// gateRetries is how often a gate is restarted that was terminated from outside, for example with its node.
	gateRetries = 6
)

// finalExits are the exit codes for failures that a retry does not fix: invalid arguments, the cache failed, not ready in time
// (cmd/cacheserver/initializer.go).
var finalExits = []int32{1, 3, 4}

// job returns the gate as a job of a JobSet that replaces a runtime's step. It keeps the step's defaults for caches in its
// environment, and its placement. It has no API server token, writes only its log, and fails permanently only for failures that a
// retry does not fix. The restart policy is Never, because a Job that gives up deletes pods that it would restart, together with the
// log that explains the failure.
func (g Gate) job(step request.Step, ownVolume bool) jobset.ReplicatedJob {
	pod := g.Pod(wellknown.StepName, gateCommand, fmt.Sprintf("--notices=:%d", wellknown.HTTPPort))
	pod.NodeSelector, pod.Tolerations = maps.Clone(step.NodeSelector), slices.Clone(step.Tolerations)
	waits := &pod.Containers[0]
	waits.Ports = []corev1.ContainerPort{{Name: "notices", ContainerPort: wellknown.HTTPPort, Protocol: corev1.ProtocolTCP}}
	waits.Env = g.env(step.Env)
	waits.VolumeMounts = []corev1.VolumeMount{{Name: stepVolume, MountPath: stepMount, ReadOnly: true}}
	if ownVolume {
		pod.Volumes = []corev1.Volume{{Name: stepVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	return jobset.ReplicatedJob{
		Name:     wellknown.StepName,
		Replicas: 1,
		Template: batchv1.JobTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{ancestorLabel: wellknown.StepName}},
			Spec: batchv1.JobSpec{
				BackoffLimit:     new(int32(gateRetries)),
				PodFailurePolicy: gateFailurePolicy(),
				Template: corev1.PodTemplateSpec{
					// A service mesh's proxy in the pod would prevent the step from completing. The controller sends notices to pods
					// with its label.
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"sidecar.istio.io/inject": "false", wellknown.LabelManagedBy: wellknown.ManagedBy}},
					Spec:       pod,
				},
			},
		},
	}
}

// Pod returns a pod whose only container runs a command of the image once. It has no API server token, and satisfies the restricted Pod Security
// Standard.
func (g Gate) Pod(container string, args ...string) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy:                corev1.RestartPolicyNever,
		AutomountServiceAccountToken: new(false),
		EnableServiceLinks:           new(false),
		ImagePullSecrets:             slices.Clone(g.ImagePullSecrets),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   new(true),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:                     container,
			Image:                    g.Image,
			ImagePullPolicy:          g.ImagePullPolicy,
			Args:                     args,
			Resources:                g.resources(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false),
				Privileged:               new(false),
				ReadOnlyRootFilesystem:   new(true),
				RunAsNonRoot:             new(true),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		}},
	}
}

// env returns the step's environment by name. Of the runtime's variables it keeps those that caches or the gate read: the others,
// such as STORAGE_URI, CACHE_IMAGE or tokens, were for the program that the gate replaces.
func (g Gate) env(defaults []corev1.EnvVar) []corev1.EnvVar {
	env := []corev1.EnvVar{jobName(), podUID()}
	for _, v := range defaults {
		if request.IsParameter(v.Name) {
			env = append(env, v)
		}
	}
	for _, v := range g.Env {
		if !slices.ContainsFunc(env, func(set corev1.EnvVar) bool { return set.Name == v.Name }) {
			env = append(env, v)
		}
	}
	slices.SortStableFunc(env, func(a, b corev1.EnvVar) int { return cmp.Compare(a.Name, b.Name) })
	return env
}

// resources always includes a cpu limit: the Kubeflow SDK fails on limits without one (kubeflow 0.5.0
// trainer/backends/kubernetes/utils.py:40). A low one would only stretch the start of the program, which takes 0.1 CPU-seconds.
func (g Gate) resources() corev1.ResourceRequirements {
	resources := *g.Resources.DeepCopy()
	if resources.Requests == nil {
		resources.Requests = corev1.ResourceList{}
	}
	if resources.Limits == nil {
		resources.Limits = corev1.ResourceList{}
	}
	for name, preset := range map[corev1.ResourceName]struct{ request, limit string }{
		corev1.ResourceCPU:    {"100m", "1"},
		corev1.ResourceMemory: {"64Mi", "64Mi"},
	} {
		limit, limited := resources.Limits[name]
		request, requested := resources.Requests[name]
		switch {
		case requested:
		case limited:
			request = limit
		default:
			request = resource.MustParse(preset.request)
		}
		if !limited {
			limit = resource.MustParse(preset.limit)
			if limit.Cmp(request) < 0 {
				limit = request
			}
		}
		resources.Limits[name], resources.Requests[name] = limit, request
	}
	return resources
}

func gateFailurePolicy() *batchv1.PodFailurePolicy {
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{
			Action: batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				ContainerName: new(wellknown.StepName),
				Operator:      batchv1.PodFailurePolicyOnExitCodesOpIn,
				Values:        slices.Clone(finalExits),
			},
		},
		{
			Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
			},
		},
	}}
}

// podUID is the variable by which the gate proves to the manager which pod it is.
func podUID() corev1.EnvVar {
	return corev1.EnvVar{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}}
}

// jobName is the variable by which gate and training find the cache: the TrainJob's name, taken from a label that JobSet puts on
// every pod. The name itself is not known when a TrainJob with generateName is admitted.
func jobName() corev1.EnvVar {
	return corev1.EnvVar{Name: "TRAIN_JOB_NAME", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels['" + wellknown.LabelJobSet + "']"},
	}}
}
