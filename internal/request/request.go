// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Request is the cache that a TrainJob requests.
type Request struct {
	// References are the existing DataCaches that the TrainJob names, in its order; Cache is then empty. It is nil if the TrainJob names
	// none.
	References []Reference
	// Dataset is the dataset that training reads of the TrainJob's first cache, from its reference or from DERIVE; "": it reads the table.
	Dataset string
	// Cache is the spec of the cache to create. Only requested fields are set, the API sets the defaults; resources only have
	// requests.
	Cache v1alpha1.DataCacheSpec
	// Shared says that all TrainJobs of the namespace that request the same rows or files share the cache, and that its idleTTL frees it.
	Shared bool
	// Name is the name of a shared DataCache, the same for the same rows or files; otherwise "": the DataCache then has the TrainJob's name,
	// which may not be known yet.
	Name string
}

// Parse returns the request of a TrainJob that requests a cache (Wants). step is its runtime's (StepOf), whose values the TrainJob's
// override; an empty value counts as missing. Each error names a field, its value and how to correct it; the request is then nil.
func (j *Job) Parse(step Step) (*Request, field.ErrorList) {
	switch {
	case j.Kind == Nothing && (j.uri != "" || !namesTable(step.Env)):
		return nil, field.ErrorList{field.Invalid(uriPath, j.uri,
			"asks for no cache, for which the step "+wellknown.StepName+" of the runtime waits: "+tableForm+"; or "+folderForm+"; or "+referenceForm+"; or "+fluidForm+
				"; or leave it out and set SCHEMA_NAME and TABLE_NAME in "+envPath.String()+"; or name a runtime without that step")}
	case j.Kind == Named:
		return referenced(j)
	}
	s := gather(j, step.Env)
	if j.Kind == Files {
		return s.files()
	}
	return s.arrow(step)
}

// referenced parses the request of a TrainJob with a datacache:// URI, which may only name DataCaches.
func referenced(j *Job) (*Request, field.ErrorList) {
	s := gather(j, nil)
	s.gate()
	for _, p := range s.given.sorted() {
		if !isGate(p.name) && !isIgnored(p) && p.name != StatusVariable {
			s.errs = append(s.errs, p.invalid("has no effect: the DataCache of %s says what is cached and how; leave %s out, or name a table by cache://", uriPath, p.name))
		}
	}
	if secret := j.OwnSecret; secret != nil {
		s.errs = append(s.errs, field.Invalid(secretPath.Child("name"), secret.Name, "has no effect: the DataCache has its own credentials; leave secretRef out"))
	}
	if j.noReference != "" {
		s.errs = append(s.errs, field.Invalid(uriPath, j.uri, j.noReference))
	}
	if len(s.errs) > 0 {
		return nil, s.errs
	}
	return &Request{References: j.References, Dataset: j.References[0].Dataset}, nil
}
