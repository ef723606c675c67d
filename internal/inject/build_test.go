// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/jobtest"
	"github.com/kubeflow/datacache/test/kit/stocktest"
)

const location, table, files = jobtest.Location, jobtest.Table, jobtest.Files

var (
	trainJob   = jobtest.TrainJob
	annotated  = jobtest.Annotated
	withSecret = jobtest.WithSecret
	variables  = jobtest.Variables
	edited     = jobtest.Edited
	expect     = jobtest.Expect
)

// mutate mutates a new TrainJob.
func mutate(job *trainer.TrainJob, rt *request.Runtime, settings Settings) field.ErrorList {
	return Mutate(job, request.Read(job, job.Namespace), rt, settings)
}

// validate returns the request of a TrainJob that was mutated, or why it is rejected.
func validate(job *trainer.TrainJob, rt *request.Runtime) (*request.Request, field.ErrorList) {
	return Validate(request.Read(job, job.Namespace), rt)
}

// useMirror makes a TrainJob use the mirror.
func useMirror(job *trainer.TrainJob, rt *request.Runtime, settings Settings) {
	UseHub(job, request.Read(job, job.Namespace).Kind, rt, settings)
}

// stock returns one of Trainer's runtimes.
func stock(t testing.TB, name string) *request.Runtime {
	t.Helper()
	return request.Cluster(stocktest.Runtime(t, name))
}

// twin returns the twin of a runtime.
func twin(t testing.TB, source *request.Runtime) *request.Runtime {
	t.Helper()
	spec, err := Twin(source.Spec, Gate{Image: image})
	if err != nil {
		t.Fatal(err)
	}
	return &request.Runtime{Kind: source.Kind, Name: wellknown.TwinName(source.Name), Labels: TwinLabels(source.Labels), Spec: spec}
}
