// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Settings are the platform's settings for what admission injects. The zero value is valid.
type Settings struct {
	// NoZoneAffinity disables the affinity of training pods to the zone of their cache's pods.
	NoZoneAffinity bool
	// HubMirror is the mirror of the Hugging Face hub that UseHub makes TrainJobs use.
	HubMirror HubMirror
	// Unique is a text that is unique to the TrainJob and valid as a label value, such as the UID of the admission request. With it,
	// training pods of a TrainJob whose name is still to be generated find the zone of their cache; if it is empty, they have no
	// affinity.
	Unique string
	// StatusURL is where gates ask for the state of caches without a head (controller.Options.StatusAddress); such caches can't be waited
	// for if it is empty.
	StatusURL string
	// Namespace is the TrainJob's, which may not be set in the TrainJob yet.
	Namespace string
	// Cache is the DataCache that the TrainJob names; nil if it names none, or none that exists.
	Cache *v1alpha1.DataCache
	// Now is the timestamp of our entry in spec.runtimePatches; if zero, Trainer's own webhook sets it.
	Now metav1.Time
}

// Mutate edits in place a TrainJob that requests a cache (Asks), so that it gets the cache; it is idempotent. rt is the runtime that
// RuntimeRef names, nil if it does not exist. On an update, old is the previous TrainJob, otherwise nil. An update restores what was
// injected before and does not look at runtime and settings: clients that write the whole object, such as the SDK and kubectl apply,
// need not know our additions, and Trainer rejects changes to them. The errors say why the TrainJob can't be served.
//
// A TrainJob of another manager (spec.managedBy: kueue.x-k8s.io/multikueue) is edited too: Kueue counts the same pods in the cluster
// that queues it and in the one that runs it only if both see the same runtime. But the controller ignores it.
func Mutate(job, old *trainer.TrainJob, rt *Runtime, settings Settings) field.ErrorList {
	if old != nil {
		return restore(job, old)
	}
	if errs := retarget(job, rt); len(errs) > 0 {
		return errs
	}
	hideSecret(job)
	if cache := mountOf(job, rt, settings); cache != nil {
		cache.mount(job, rt, settings)
		return nil
	}
	if patch := zonePatch(job, rt, settings); patch != nil {
		setPatch(job, *patch, 0)
	}
	return nil
}

// retarget points the TrainJob at a runtime whose step is our gate: the one it named, or that runtime's twin.
func retarget(job *trainer.TrainJob, rt *Runtime) field.ErrorList {
	ref := RuntimeRef(job)
	if rt == nil {
		how := "install it or name another"
		if job.Spec.RuntimeRef.Name == "" {
			how = "it is the default, as no runtime is named; name one"
		}
		return field.ErrorList{field.Invalid(runtimePath.Child("name"), ref.Name, fmt.Sprintf("there is no such %s: %s", *ref.Kind, how))}
	}
	if !HasGate(rt.Labels, rt.Spec) {
		if err := servable(rt); err != nil {
			return field.ErrorList{err}
		}
		annotate(job, wellknown.AnnotationRuntime, describe(ref))
		ref.Name = wellknown.TwinName(ref.Name)
	}
	job.Spec.RuntimeRef = ref
	return nil
}

// servable returns an error if no twin of the runtime can be used.
func servable(rt *Runtime) *field.Error {
	if rt.Labels[wellknown.LabelDerive] == "false" {
		return field.Invalid(runtimePath.Child("name"), rt.Name, "the runtime's step "+wellknown.StepName+" is not datacache's, and its label "+wellknown.LabelDerive+
			"=false forbids a copy of it that has one: name another runtime")
	}
	if _, err := Twin(rt.Spec, Gate{}); err != nil {
		return unusable(rt, err)
	}
	return nil
}

func unusable(rt *Runtime, why error) *field.Error {
	return field.Invalid(runtimePath.Child("name"), rt.Name, fmt.Sprintf("the runtime can't be used with a cache: %v", why))
}

// hideSecret moves the name of the credentials' Secret to an annotation: Trainer would put the whole Secret into the gate's
// environment.
func hideSecret(job *trainer.TrainJob) {
	initializer := dataset(job)
	if initializer.SecretRef == nil || initializer.SecretRef.Name == "" || isReference(job) {
		return
	}
	annotate(job, wellknown.AnnotationSecret, initializer.SecretRef.Name)
	initializer.SecretRef = nil
}

// restore restores what was injected into old. The API server validates the update's other changes.
func restore(job, old *trainer.TrainJob) field.ErrorList {
	if Matches(job) != Matches(old) {
		return field.ErrorList{field.Forbidden(datasetPath, "can't be added, taken away or changed on a TrainJob that exists: make a new one")}
	}
	for _, name := range []string{wellknown.AnnotationRuntime, wellknown.AnnotationSecret, wellknown.AnnotationPlacement} {
		if value, injected := old.Annotations[name]; injected {
			annotate(job, name, value)
		}
	}
	if named := RuntimeRef(job); describe(named) == old.Annotations[wellknown.AnnotationRuntime] || job.Spec.RuntimeRef.Name == "" {
		job.Spec.RuntimeRef = old.Spec.RuntimeRef
	}
	if secret := dataset(job).SecretRef; secret != nil && dataset(old).SecretRef == nil && secret.Name == old.Annotations[wellknown.AnnotationSecret] {
		dataset(job).SecretRef = nil
	}
	restoreVariables(job, old)
	restoreHub(job, old)
	if at := patchOf(old); at >= 0 {
		setPatch(job, old.Spec.RuntimePatches[at], at)
	}
	return nil
}

func annotate(job *trainer.TrainJob, name, value string) {
	if job.Annotations == nil {
		job.Annotations = map[string]string{}
	}
	job.Annotations[name] = value
}
