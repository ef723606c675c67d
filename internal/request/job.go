// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"strings"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeflow/datacache/internal/reference"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Kind is what a TrainJob's dataset initializer names.
type Kind int

// The kinds. Nothing: the TrainJob has no dataset initializer, or one of another program; its runtime may still name a table.
const (
	Nothing Kind = iota
	Table        // cache:// or cache+, or the variables SCHEMA_NAME and TABLE_NAME as in the Kubeflow enhancement proposal 2655
	Named        // datacache://
	Files        // fluid+
)

// Job is what a TrainJob itself says about its cache. It shares memory with the TrainJob, and does not change with it.
type Job struct {
	Kind Kind
	// Name is empty as long as the API server has not generated it.
	Name, GenerateName, Namespace string
	// Runtime is the runtime that the TrainJob names, with the API server's defaults; wellknown.DefaultRuntime if it names none.
	Runtime trainer.RuntimeRef
	// OriginalKind and OriginalName are the runtime that the TrainJob named before admission, which is Runtime until then.
	OriginalKind, OriginalName string
	// OwnSecret is the Secret that the TrainJob's field names, nil if it has none. Admission moves the name to an annotation.
	OwnSecret *corev1.LocalObjectReference
	// References are the DataCaches that the TrainJob names, in its order; nil if it names none, or if its storageUri is invalid.
	References []Reference
	// Workers are the processes that read the cache.
	Workers Workers

	uri         string
	env         []corev1.EnvVar
	secret      string // name of the Secret with the object store's credentials, by the field or the annotation
	noReference string // why a storageUri of References is invalid
}

// Read reads a TrainJob. namespace is the TrainJob's, which may not be set in it yet.
func Read(job *trainer.TrainJob, namespace string) *Job {
	dataset := &trainer.DatasetInitializer{}
	if job.Spec.Initializer != nil && job.Spec.Initializer.Dataset != nil {
		dataset = job.Spec.Initializer.Dataset
	}
	j := &Job{
		Name: job.Name, GenerateName: job.GenerateName, Namespace: namespace, Runtime: RuntimeRef(job.Spec.RuntimeRef),
		OwnSecret: dataset.SecretRef, secret: job.Annotations[wellknown.AnnotationSecret],
		Workers: workersOf(job.Spec.Trainer), uri: ptr.Deref(dataset.StorageUri, ""), env: dataset.Env,
	}
	if j.OwnSecret != nil {
		j.secret = j.OwnSecret.Name
	}
	j.OriginalKind, j.OriginalName = originalRuntime(job.Annotations[wellknown.AnnotationRuntime], j.Runtime)
	switch {
	case strings.HasPrefix(j.uri, tableScheme), strings.HasPrefix(j.uri, folderScheme), j.uri == "" && namesTable(j.env):
		j.Kind = Table
	case strings.HasPrefix(j.uri, fluidScheme):
		j.Kind = Files
	case strings.HasPrefix(j.uri, referenceScheme):
		j.Kind = Named
		j.References, j.noReference = parseReferences(j.uri, namespace)
	}
	return j
}

// Wants reports whether the TrainJob requests a cache, either itself or through a runtime whose step waits for one. rt is the runtime that
// it names, nil if it does not exist.
func (j *Job) Wants(rt *Runtime) bool {
	return j.Kind != Nothing || rt != nil && HasGate(rt.Labels, rt.Spec)
}

// Use is a DataCache that a TrainJob names, the Service at which the TrainJob's clients find it, and the folder in which they have
// credentials for it.
type Use struct {
	Reference
	Service, Folder string
}

// Uses returns the DataCaches that the TrainJob names by datacache://, nil if it names none or its storageUri is invalid. The first one is
// found at ServiceName; if there are several, each is also found by its name, so that one DataCache may be returned twice. Together with
// the storageUri, the result never changes.
func (j *Job) Uses() []Use {
	if j.References == nil {
		return nil
	}
	uses := []Use{{j.References[0], wellknown.ServiceName(j.Name), wellknown.OwnCredentials}}
	if len(j.References) > 1 {
		for _, r := range j.References {
			uses = append(uses, Use{r, reference.NamedService(j.Name, r.Name), reference.Hash(r.Name)})
		}
	}
	return uses
}

// originalRuntime returns the runtime that AnnotationRuntime names, or ref if it is empty.
func originalRuntime(annotation string, ref trainer.RuntimeRef) (kind, name string) {
	if annotation == "" {
		return *ref.Kind, ref.Name
	}
	if kind, name, ok := strings.Cut(annotation, "/"); ok {
		return kind, name
	}
	return trainer.ClusterTrainingRuntimeKind, annotation
}

// namesTable reports whether an environment names a table in the KEP's form.
func namesTable(env []corev1.EnvVar) bool {
	named := map[string]bool{}
	for _, v := range env {
		named[v.Name] = true
	}
	return named["SCHEMA_NAME"] && named["TABLE_NAME"]
}
