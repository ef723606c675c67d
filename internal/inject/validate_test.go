// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

func TestValidate(t *testing.T) {
	own := twin(t, stock(t, "torch-distributed"))
	inOrder := twin(t, stock(t, "torch-distributed"))
	inOrder.Spec.Template.Spec.StartupPolicy = &jobset.StartupPolicy{StartupPolicyOrder: jobset.InOrder}
	defaults := twin(t, stock(t, "torch-distributed"))
	step := request.Container(&defaults.Spec.Template.Spec.ReplicatedJobs[0], wellknown.StepName)
	step.Env = append(step.Env, variables("CLUSTER_SIZE=two")...)
	name := func(name, generateName string) *trainer.TrainJob {
		job := trainJob(table, location)
		job.Name, job.GenerateName = name, generateName
		return job
	}
	tests := []struct {
		name string
		job  *trainer.TrainJob
		rt   *request.Runtime
		want [][]string
	}{
		{"good", trainJob(table, location), own, nil},
		{"no such runtime, for Trainer to refuse", trainJob(table, location), nil, nil},
		{"33 characters", name(strings.Repeat("a", 33), ""), own, nil},
		{"34 characters", name(strings.Repeat("a", 34), ""), own, [][]string{{"metadata.name", strings.Repeat("a", 34), "has 34 characters, at most 33", "shorten it"}}},
		{"28 to be 33", name("", strings.Repeat("a", 28)), own, nil},
		{"29 to be 34", name("", strings.Repeat("a", 29)), own, [][]string{{"metadata.generateName", "has 29 characters, at most 28"}}},
		{"ends with -, to go on", name("", "train-"), own, nil},
		{"begins with a digit", name("1a", ""), own, [][]string{{"metadata.name", `"1a"`, "must begin with a letter"}}},
		{"dot", name("a.b", ""), own, [][]string{{"metadata.name", `"a.b"`, "a-z, 0-9 and -"}}},
		{"no gate", trainJob(table, location), stock(t, "torch-distributed"), [][]string{{"spec.runtimeRef.name", "name torch-distributed-data-cache"}}},
		{"in order", trainJob(table, location), inOrder, [][]string{{"spec.runtimeRef.name", "startupPolicy"}}},
		{"the platform's defaults", trainJob(table, location), defaults, [][]string{{"spec.runtimeRef", `"CLUSTER_SIZE=two"`}}},
		{"all at once", edited(name("1a", ""), func(job *trainer.TrainJob) { job.Spec.Initializer = trainJob(table, "FILTER=a >").Spec.Initializer }), inOrder,
			[][]string{{"metadata.name"}, {"spec.runtimeRef.name"}, {"spec.initializer.dataset.env: Required"}, {"spec.initializer.dataset.env[0].value", "does not parse"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { expect(t, refusalsOf(validate(tt.job, tt.rt)), tt.want...) })
	}
}

// TestMutatedStockRuntimes checks that TrainJobs with any of Trainer's runtimes are admitted.
func TestMutatedStockRuntimes(t *testing.T) {
	for _, name := range []string{
		"deepspeed-distributed", "jax-distributed", "mlx-distributed", "torch-distributed", "torch-distributed-with-cache",
		"torchtune-llama3.2-1b", "torchtune-llama3.2-3b", "torchtune-qwen2.5-1.5b", "xgboost-distributed",
	} {
		t.Run(name, func(t *testing.T) {
			rt := stock(t, name)
			job := edited(trainJob(table, location), named("ClusterTrainingRuntime", name))
			expect(t, mutate(job, rt, admitted))
			expect(t, refusalsOf(validate(job, twin(t, rt))))
		})
	}
}

func refusalsOf(_ *request.Request, errs field.ErrorList) field.ErrorList { return errs }
