// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// runtimeName is the field that names a TrainJob's runtime.
var runtimeName = field.NewPath("spec", "runtimeRef", "name")

// Settings are the platform's settings for what admission injects. The zero value is valid.
type Settings struct {
	// NoZoneAffinity disables the affinity of training pods to the zone of their cache's pods.
	NoZoneAffinity bool
	// NoCredentials mounts no tokens for caches.
	NoCredentials bool
	// NoAnyone rejects TrainJobs that ask for a cache that serves anyone (READERS=Anyone).
	NoAnyone bool
	// Gangs says that the waiting step leaves gangs, by webhook.MutateJobSetPath or package plugin; otherwise runtimes with a podGroupPolicy
	// are rejected.
	Gangs bool
	// HubMirror is the mirror of the Hugging Face hub that UseHub makes TrainJobs use.
	HubMirror HubMirror
	// Unique is a text that is unique to the TrainJob and valid as a label value, such as the UID of the admission request. With it,
	// training pods of a TrainJob whose name is still to be generated find the zone of their cache and have tokens for it; if it is empty,
	// they have neither.
	Unique string
	// StatusURL is where gates ask for the state of caches without a head (controller.Options.StatusAddress); such caches can't be waited
	// for if it is empty.
	StatusURL string
	// Cache is the DataCache that the TrainJob names; nil if it names none, or none that exists.
	Cache *v1alpha1.DataCache
	// Now is the timestamp of our entry in spec.runtimePatches; if zero, Trainer's own webhook sets it.
	Now metav1.Time
}

// Mutate edits in place a new TrainJob that requests a cache (request.Job.Wants), so that it gets the cache; it is idempotent. parsed is the
// TrainJob as it was read, and rt the runtime that it names, nil if that does not exist. The errors say why the TrainJob can't be served.
//
// A TrainJob of another manager (spec.managedBy: kueue.x-k8s.io/multikueue) is edited too: Kueue counts the same pods in the cluster
// that queues it and in the one that runs it only if both see the same runtime. But the controller ignores it.
func Mutate(job *trainer.TrainJob, parsed *request.Job, rt *request.Runtime, settings Settings) field.ErrorList {
	if errs := retarget(job, parsed.Runtime, rt); len(errs) > 0 {
		return errs
	}
	if err := checkGang(rt, settings); err != nil {
		return field.ErrorList{err}
	}
	if secret := parsed.OwnSecret; secret != nil && secret.Name != "" && parsed.Kind != request.Named {
		// Trainer would put the whole Secret into the gate's environment.
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, wellknown.AnnotationSecret, secret.Name)
		job.Spec.Initializer.Dataset.SecretRef = nil
	}
	asked, _ := parsed.Parse(request.StepOf(rt)) // Validate reports the errors
	if files := filesOf(parsed, asked, settings.Cache); files != nil {
		files.mount(job, rt, settings)
		return nil
	}
	if asked != nil {
		patchPods(job, parsed, asked, rt, settings)
	}
	return nil
}

// retarget points the TrainJob at a runtime whose step is our gate: the one it named by ref, or that runtime's twin.
func retarget(job *trainer.TrainJob, ref trainer.RuntimeRef, rt *request.Runtime) field.ErrorList {
	if rt == nil {
		how := "install it or name another"
		if job.Spec.RuntimeRef.Name == "" {
			how = "it is the default, as no runtime is named; name one"
		}
		return field.ErrorList{field.Invalid(runtimeName, ref.Name, fmt.Sprintf("there is no such %s: %s", *ref.Kind, how))}
	}
	if !request.HasGate(rt.Labels, rt.Spec) {
		if err := servable(rt); err != nil {
			return field.ErrorList{err}
		}
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, wellknown.AnnotationRuntime, describe(ref))
		ref.Name = wellknown.TwinName(ref.Name)
	}
	job.Spec.RuntimeRef = ref
	return nil
}

// describe formats a reference to a runtime for AnnotationRuntime.
func describe(ref trainer.RuntimeRef) string {
	if *ref.Kind == trainer.ClusterTrainingRuntimeKind {
		return ref.Name
	}
	return *ref.Kind + "/" + ref.Name
}

// servable returns an error if no twin of the runtime can be used.
func servable(rt *request.Runtime) *field.Error {
	if rt.Labels[wellknown.LabelDerive] == "false" {
		return field.Invalid(runtimeName, rt.Name, "the runtime's step "+wellknown.StepName+" is not datacache's, and its label "+wellknown.LabelDerive+
			"=false forbids a copy of it that has one: name another runtime")
	}
	if _, err := Twin(rt.Spec, Gate{}); err != nil {
		return unusable(rt, err)
	}
	return nil
}

func unusable(rt *request.Runtime, why error) *field.Error {
	return field.Invalid(runtimeName, rt.Name, fmt.Sprintf("the runtime can't be used with a cache: %v", why))
}
