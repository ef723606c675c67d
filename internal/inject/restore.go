// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Restore puts back, in an updated TrainJob, what was injected into old, the TrainJob before the update: clients that write the whole
// object, such as the SDK and kubectl apply, need not know our additions, and Trainer rejects changes to them. The API server validates the
// update's other changes. The errors say that a cache was added or taken away.
func Restore(job, old *trainer.TrainJob) field.ErrorList {
	now, before := request.Read(job, job.Namespace), request.Read(old, old.Namespace)
	if (now.Kind == request.Nothing) != (before.Kind == request.Nothing) {
		return field.ErrorList{field.Forbidden(field.NewPath("spec", "initializer", "dataset"), "can't be added, taken away or changed on a TrainJob that exists: make a new one")}
	}
	for _, name := range []string{wellknown.AnnotationRuntime, wellknown.AnnotationSecret, wellknown.AnnotationPlacement} {
		if value, injected := old.Annotations[name]; injected {
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, name, value)
		}
	}
	if job.Spec.RuntimeRef.Name == "" || describe(now.Runtime) == old.Annotations[wellknown.AnnotationRuntime] {
		job.Spec.RuntimeRef = old.Spec.RuntimeRef
	}
	if secret := now.OwnSecret; secret != nil && before.OwnSecret == nil && secret.Name == old.Annotations[wellknown.AnnotationSecret] {
		job.Spec.Initializer.Dataset.SecretRef = nil
	}
	restoreVariables(job, old)
	restoreHub(job, old, now.Kind)
	if at := patchOf(old); at >= 0 {
		setPatch(job, old.Spec.RuntimePatches[at], at)
	}
	return nil
}

// restoreVariables puts back the variables that mounted files need.
func restoreVariables(job, old *trainer.TrainJob) {
	if was, is := old.Spec.Initializer, job.Spec.Initializer; was != nil && was.Dataset != nil && is != nil && is.Dataset != nil {
		if v := variable(was.Dataset.Env, request.StatusVariable); v != "" {
			is.Dataset.Env = withVariable(is.Dataset.Env, request.StatusVariable, v)
		}
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

// restoreHub restores the variables that UseHub injected into old, for clients that write the whole TrainJob. Call it after what Mutate
// injected is restored.
func restoreHub(job, old *trainer.TrainJob, kind request.Kind) {
	old = old.DeepCopy() // hubEnv may add an empty trainer
	for _, container := range []string{wellknown.StepName, modelStep, wellknown.NodeName} {
		before, _ := hubEnv(old, kind, container)
		if before == nil || !names(*before, hubEndpoint) {
			continue
		}
		env, _ := hubEnv(job, kind, container)
		if env == nil {
			continue
		}
		without := slices.DeleteFunc(slices.Clone(*before), func(v corev1.EnvVar) bool { return v.Name == hubEndpoint || v.Name == hubTokenPath })
		if slices.EqualFunc(*env, without, func(a, b corev1.EnvVar) bool { return a.Name == b.Name && a.Value == b.Value }) {
			*env = slices.Clone(*before)
		}
	}
}
