// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"regexp"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Names of Services begin with a letter and have no dots; the name that is still to be made of a prefix ends with letters and digits.
var (
	jobNameForm   = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	jobPrefixForm = regexp.MustCompile(`^[a-z][-a-z0-9]*$`)
)

// Validate gives what a TrainJob that Asks for a cache wants, after Mutate, or refuses it for that, its name or its runtime. The runtime is the
// one that it names now; nil if there is no such, which is for Trainer to refuse. It is for TrainJobs that are created: nothing that it
// looks at can change later, and a TrainJob that exists must stay changeable when rules become stricter.
func Validate(job *trainer.TrainJob, rt *Runtime) (*Request, field.ErrorList) {
	errs := validateName(job)
	if rt != nil {
		errs = append(errs, validateRuntime(rt)...)
	}
	request, wrong := Parse(job, StepOf(rt))
	if errs = append(errs, wrong...); len(errs) > 0 {
		return nil, errs
	}
	return request, nil
}

func validateName(job *trainer.TrainJob) field.ErrorList {
	path, name, room, form := field.NewPath("metadata", "name"), job.Name, maxJobName, jobNameForm
	if name == "" {
		path, name, room, form = field.NewPath("metadata", "generateName"), job.GenerateName, maxJobName-generatedSuffix, jobPrefixForm
	}
	var errs field.ErrorList
	if len(name) > room {
		errs = append(errs, field.Invalid(path, name, fmt.Sprintf("has %d characters, at most %d are allowed with a cache: the pods of its step are named %s; shorten it",
			len(name), room, name+"-"+StepName+"-0-0-abcde")))
	}
	if !form.MatchString(name) {
		errs = append(errs, field.Invalid(path, name, "must begin with a letter and hold only a-z, 0-9 and -, as the cache's Service is named after it"))
	}
	return errs
}

// validateRuntime refuses what Mutate would have mended or refused, had it run, and what somebody made a gate of by hand.
func validateRuntime(rt *Runtime) field.ErrorList {
	if !HasGate(rt.Labels, rt.Spec) {
		if err := servable(rt); err != nil {
			return field.ErrorList{err}
		}
		return field.ErrorList{field.Invalid(runtimePath.Child("name"), rt.Name,
			fmt.Sprintf("the runtime's step %s is not datacache's: name %s, which datacache keeps for it", StepName, TwinName(rt.Name)))}
	}
	if err := twinnable(rt.Spec); err != nil {
		return field.ErrorList{unusable(rt, err)}
	}
	return nil
}
