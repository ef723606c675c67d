// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package jobtest makes TrainJobs for tests of what they request, and judges the errors.
package jobtest

import (
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What TrainJobs of tests name: a table, its metadata as a variable, and files.
const (
	Table    = "cache://demo/reviews"
	Location = "METADATA_LOC=s3://bucket/reviews/metadata/00003.metadata.json"
	Files    = "fluid+s3://bucket/imagenet"
)

// TrainJob returns a TrainJob as the Kubeflow SDK builds it, with variables as NAME=value. An empty URI is omitted.
func TrainJob(uri string, env ...string) *trainer.TrainJob {
	dataset := &trainer.DatasetInitializer{Env: Variables(env...)}
	if uri != "" {
		dataset.StorageUri = &uri
	}
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Name: "train", Namespace: "team-a"},
		Spec: trainer.TrainJobSpec{
			RuntimeRef:  trainer.RuntimeRef{Name: "torch-distributed", Kind: new("ClusterTrainingRuntime"), APIGroup: new("trainer.kubeflow.org")},
			Initializer: &trainer.Initializer{Dataset: dataset},
		},
	}
}

// Variables returns an environment of NAME=value.
func Variables(env ...string) []corev1.EnvVar {
	var all []corev1.EnvVar
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		all = append(all, corev1.EnvVar{Name: name, Value: value})
	}
	return all
}

// Edited returns the TrainJob after the edits.
func Edited(job *trainer.TrainJob, edits ...func(*trainer.TrainJob)) *trainer.TrainJob {
	for _, edit := range edits {
		edit(job)
	}
	return job
}

// Annotated returns an edit that sets an annotation.
func Annotated(name, value string) func(*trainer.TrainJob) {
	return func(job *trainer.TrainJob) { metav1.SetMetaDataAnnotation(&job.ObjectMeta, name, value) }
}

// WithSecret names a Secret as the user does.
func WithSecret(job *trainer.TrainJob, name string) *trainer.TrainJob {
	job.Spec.Initializer.Dataset.SecretRef = &corev1.LocalObjectReference{Name: name}
	return job
}

// Expect checks that there are as many errors as elements of want, and that each contains all texts of its element, in order.
func Expect(t *testing.T, errs field.ErrorList, want ...[]string) {
	t.Helper()
	if len(errs) != len(want) {
		t.Fatalf("%d errors, want %d: %v", len(errs), len(want), errs)
	}
	for i, parts := range want {
		for _, part := range parts {
			if !strings.Contains(errs[i].Error(), part) {
				t.Errorf("error %d: %q\n\tdoes not hold %q", i, errs[i], part)
			}
		}
	}
}
