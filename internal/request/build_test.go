// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/test/kit/jobtest"
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

func parse(job *trainer.TrainJob, step Step) (*Request, field.ErrorList) {
	return Read(job, job.Namespace).Parse(step)
}
