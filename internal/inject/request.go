// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"strings"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Request is the cache that a TrainJob requests.
type Request struct {
	// References are the existing DataCaches that the TrainJob names, in its order; Cache is then empty. It is nil if the TrainJob names
	// none.
	References []Reference
	// Cache is the spec of the cache to create. Only requested fields are set, the API sets the defaults; resources only have
	// requests.
	Cache v1alpha1.DataCacheSpec
	// Shared says that all TrainJobs of the namespace that request the same rows or files share the cache, and that its idleTTL frees it.
	Shared bool
	// Name is the name of a shared DataCache, the same for the same rows or files; otherwise "": the DataCache then has the TrainJob's name,
	// which may not be known yet.
	Name string
}

// Reference is a DataCache that a TrainJob names.
type Reference struct {
	// Name is <name> or <namespace>/<name>, as the TrainJob writes it.
	Name string
	// Key is the DataCache. Its namespace is the TrainJob's unless the name has another.
	Key types.NamespacedName
}

// Parse returns the request of a TrainJob that requests a cache (Asks). step is its runtime's (StepOf), whose values the TrainJob's
// override; an empty value counts as missing. Each error names a field, its value and how to correct it; the request is then nil.
func Parse(job *trainer.TrainJob, step Step) (*Request, field.ErrorList) {
	if !Matches(job) && (storageURI(job) != "" || !namesTable(step.Env)) {
		return nil, field.ErrorList{field.Invalid(uriPath, storageURI(job),
			"asks for no cache, for which the step "+wellknown.StepName+" of the runtime waits: "+tableForm+"; or "+referenceForm+"; or "+fluidForm+
				"; or leave it out and set SCHEMA_NAME and TABLE_NAME in "+envPath.String()+"; or name a runtime without that step")}
	}
	if isReference(job) {
		return referenced(job)
	}
	given, errs := gather(job, step.Env)
	s := spec{given: given, errs: errs}
	if isFluid(job) {
		return s.fluid(job)
	}
	s.refuseFluid()
	arrow := v1alpha1.ArrowCache{Table: s.table(job), Replicas: 1}
	s.source(&arrow)
	s.selection(&arrow)
	s.size(&arrow)
	credentials := s.access(job, &arrow)
	arrow.Readiness = s.readiness()
	s.gate()
	shared, idle := s.lifetime()
	grace := s.suspendGrace()
	if len(s.errs) > 0 {
		return nil, s.errs
	}
	arrow.Head.Template, arrow.DataNode.Template = step.template(headContainer), step.template(nodeContainer)
	request := &Request{Cache: v1alpha1.DataCacheSpec{Arrow: &arrow, Credentials: credentials}, Shared: shared}
	request.Cache.Retention.SuspendGrace = grace
	if shared {
		request.Cache.Retention.IdleTTL = &metav1.Duration{Duration: idle}
		request.Cache.Retention.DeleteAfterIdle = &metav1.Duration{Duration: max(idle, deleteAfterIdle)}
		request.Name = sharedName(&arrow)
	}
	return request, nil
}

// Matches reports whether a TrainJob's dataset initializer is ours: its storageUri begins with cache://, datacache:// or fluid+, or it has
// no storageUri but the variables SCHEMA_NAME and TABLE_NAME, as in the Kubeflow enhancement proposal 2655.
func Matches(job *trainer.TrainJob) bool {
	if uri := storageURI(job); uri != "" {
		return strings.HasPrefix(uri, tableScheme) || strings.HasPrefix(uri, referenceScheme) || isFluid(job)
	}
	return namesTable(dataset(job).Env)
}

// Asks reports whether a TrainJob requests a cache, either itself or through a runtime whose step waits for one. rt is the runtime
// that it names, nil if it does not exist.
func Asks(job *trainer.TrainJob, rt *Runtime) bool {
	return Matches(job) || rt != nil && HasGate(rt.Labels, rt.Spec)
}

// namesTable reports whether an environment names a table in the KEP's form.
func namesTable(env []corev1.EnvVar) bool {
	named := map[string]bool{}
	for _, v := range env {
		named[v.Name] = true
	}
	return named["SCHEMA_NAME"] && named["TABLE_NAME"]
}

// dataset returns a TrainJob's dataset initializer, an empty one if it has none.
func dataset(job *trainer.TrainJob) *trainer.DatasetInitializer {
	if job.Spec.Initializer == nil || job.Spec.Initializer.Dataset == nil {
		return &trainer.DatasetInitializer{}
	}
	return job.Spec.Initializer.Dataset
}

// storageURI is the TrainJob's storageUri, or "" if it has none.
func storageURI(job *trainer.TrainJob) string {
	return ptr.Deref(dataset(job).StorageUri, "")
}

// isReference reports whether the TrainJob names existing DataCaches.
func isReference(job *trainer.TrainJob) bool {
	return strings.HasPrefix(storageURI(job), referenceScheme)
}

// referenced parses the request of a TrainJob with a datacache:// URI, which may only name DataCaches.
func referenced(job *trainer.TrainJob) (*Request, field.ErrorList) {
	given := parameters{}
	errs := given.addOwn(dataset(job).Env)
	gate := spec{given: given}
	gate.gate()
	errs = append(errs, gate.errs...)
	for _, p := range given.sorted() {
		if !isGate(p.name) && !isIgnored(p) && p.name != statusName {
			errs = append(errs, p.invalid("has no effect: the DataCache of %s says what is cached and how; leave %s out, or name a table by cache://", uriPath, p.name))
		}
	}
	if secret := dataset(job).SecretRef; secret != nil {
		errs = append(errs, field.Invalid(secretPath.Child("name"), secret.Name, "has no effect: the DataCache has its own credentials; leave secretRef out"))
	}
	references, reason := parseReferences(storageURI(job), job.Namespace)
	if reason != "" {
		errs = append(errs, field.Invalid(uriPath, storageURI(job), reason))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return &Request{References: references}, nil
}

// credentialsSecret is the name of the Secret with the object store's credentials, "" if there is none: from the annotation that
// admission set, or from the user's field.
func credentialsSecret(job *trainer.TrainJob) string {
	if secret := dataset(job).SecretRef; secret != nil {
		return secret.Name
	}
	return job.Annotations[wellknown.AnnotationSecret]
}

// badSecret returns the error for a name that no Secret can have.
func badSecret(name string) *field.Error {
	if wrong := validation.IsDNS1123Subdomain(name); wrong != nil {
		return field.Invalid(secretPath.Child("name"), name, "must be the name of a Secret of the TrainJob's namespace: "+wrong[0])
	}
	return nil
}
