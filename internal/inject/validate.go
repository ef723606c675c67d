// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Names of Services begin with a letter and have no dots; a name generated from a prefix ends with letters and digits.
var (
	jobNameForm   = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	jobPrefixForm = regexp.MustCompile(`^[a-z][-a-z0-9]*$`)
)

// maxJobName is the maximum length of the name of a TrainJob with our step: JobSet makes pods named
// <name>-dataset-initializer-0-0-abcde, and a pod's hostname has at most 63 characters (sigs.k8s.io/jobset v0.12.0
// pkg/webhooks/jobset_webhook.go:243).
const maxJobName = 63 - len("-"+wellknown.StepName+"-0-0-abcde")

// generatedSuffix is the number of characters that the API server adds to metadata.generateName.
const generatedSuffix = 5

// Validate returns the request of a TrainJob that requests a cache (request.Job.Wants), after Mutate, or errors in its request, name or
// runtime. rt is the runtime that it now names; nil if it does not exist, which Trainer rejects. Validate is only called for TrainJobs that
// are created: what it checks is immutable, and an existing TrainJob must remain changeable when rules become stricter.
func Validate(parsed *request.Job, rt *request.Runtime) (*request.Request, field.ErrorList) {
	errs := validateName(parsed.Name, parsed.GenerateName)
	if rt != nil {
		errs = append(errs, validateRuntime(rt)...)
	}
	asked, wrong := parsed.Parse(request.StepOf(rt))
	if errs = append(errs, wrong...); len(errs) > 0 {
		return nil, errs
	}
	return asked, nil
}

// validateName checks the TrainJob's name, or prefix, from which the API server generates it.
func validateName(name, prefix string) field.ErrorList {
	path, room, form := field.NewPath("metadata", "name"), maxJobName, jobNameForm
	if name == "" {
		path, name, room, form = field.NewPath("metadata", "generateName"), prefix, maxJobName-generatedSuffix, jobPrefixForm
	}
	var errs field.ErrorList
	if len(name) > room {
		errs = append(errs, field.Invalid(path, name, fmt.Sprintf("has %d characters, at most %d are allowed with a cache: the pods of its step are named %s; shorten it",
			len(name), room, name+"-"+wellknown.StepName+"-0-0-abcde")))
	}
	if !form.MatchString(name) {
		errs = append(errs, field.Invalid(path, name, "must begin with a letter and hold only a-z, 0-9 and -, as the cache's Service is named after it"))
	}
	return errs
}

// validateRuntime rejects runtimes that Mutate would have replaced or rejected, if it had been called, and invalid gates that
// somebody wrote by hand.
func validateRuntime(rt *request.Runtime) field.ErrorList {
	if !request.HasGate(rt.Labels, rt.Spec) {
		if err := servable(rt); err != nil {
			return field.ErrorList{err}
		}
		return field.ErrorList{field.Invalid(runtimeName, rt.Name,
			fmt.Sprintf("the runtime's step %s is not datacache's: name %s, which datacache keeps for it", wellknown.StepName, wellknown.TwinName(rt.Name)))}
	}
	if err := twinnable(rt.Spec); err != nil {
		return field.ErrorList{unusable(rt, err)}
	}
	return nil
}
