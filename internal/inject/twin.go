// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Names defined by Trainer (kubeflow/trainer v2.3.0 pkg/constants/constants.go and pkg/runtime/framework/plugins/jobset/constants).
const (
	modelStep     = "model-initializer"
	ancestorLabel = "trainer.kubeflow.org/trainjob-ancestor-step"
	stepVolume    = "initializer"
)

// TwinLabels are the labels of a twin: its source's, since the SDK needs trainer.kubeflow.org/framework, and LabelGate.
func TwinLabels(source map[string]string) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, source)
	labels[wellknown.LabelGate] = "true"
	return labels
}

// Twin returns a copy of a runtime's spec in which the first job is our gate, as the step dataset-initializer, and every training job
// waits for it. It is idempotent. The error tells the runtime's owner why the runtime can't have a twin.
func Twin(source *trainer.TrainingRuntimeSpec, gate Gate) (*trainer.TrainingRuntimeSpec, error) {
	if err := twinnable(source); err != nil {
		return nil, err
	}
	twin := source.DeepCopy()
	spec := &twin.Template.Spec
	step := gate.job(request.SpecStep(source), !hasClaim(spec, stepVolume))
	replaced := map[string]bool{wellknown.StepName: true}
	jobs := []jobset.ReplicatedJob{step}
	for _, job := range spec.ReplicatedJobs {
		if isStep(&job) {
			replaced[job.Name] = true
			continue
		}
		jobs = append(jobs, job)
	}
	spec.ReplicatedJobs = jobs
	if err := await(jobs, replaced); err != nil {
		return nil, err
	}
	nameJob(jobs, twin.MLPolicy != nil && twin.MLPolicy.MPI != nil)
	keepSuccess(spec)
	return twin, nil
}

// twinnable returns an error if a runtime can't have a twin.
func twinnable(source *trainer.TrainingRuntimeSpec) error {
	spec := &source.Template.Spec
	trains := slices.ContainsFunc(spec.ReplicatedJobs, func(job jobset.ReplicatedJob) bool {
		return !isInitializer(&job) && request.Container(&job, wellknown.NodeName) != nil
	})
	switch {
	case len(spec.ReplicatedJobs) == 0:
		return errors.New("spec.template.spec.replicatedJobs is empty: there is nothing to train with")
	case !trains:
		return fmt.Errorf("no job has a container named %q, the one that trains and must be told where its cache is", wellknown.NodeName)
	case spec.StartupPolicy != nil && spec.StartupPolicy.StartupPolicyOrder == jobset.InOrder:
		return errors.New("spec.template.spec.startupPolicy is InOrder, which JobSet takes no dependsOn beside, " +
			"and by which training would start before the cache is ready: give the jobs dependsOn instead")
	}
	return nil
}

// isStep reports whether a job is a dataset initializer. Trainer identifies it by its name in validation and by its label when it
// passes values to it (kubeflow/trainer v2.3.0 pkg/runtime/framework/plugins/jobset: jobset.go:112, builder.go:45), so either is
// sufficient.
func isStep(job *jobset.ReplicatedJob) bool {
	return job.Name == wellknown.StepName || job.Template.Labels[ancestorLabel] == wellknown.StepName
}

// isInitializer reports whether a job runs before training and does not need the cache.
func isInitializer(job *jobset.ReplicatedJob) bool {
	return isStep(job) || job.Name == modelStep || job.Template.Labels[ancestorLabel] == modelStep
}

// hasClaim reports whether JobSet creates the volume itself, for every job that mounts it; its webhook rejects a second volume with
// the name.
func hasClaim(spec *jobset.JobSetSpec, name string) bool {
	for _, policy := range spec.VolumeClaimPolicies {
		if slices.ContainsFunc(policy.Templates, func(claim corev1.PersistentVolumeClaim) bool { return claim.Name == name }) {
			return true
		}
	}
	return false
}

// nameJob sets TRAIN_JOB_NAME in every training container. With MPI, ranks on other pods get the environment of the pod's sshd, not that of
// its container; Open MPI passes on the launcher's variables whose names begin with OMPI_.
func nameJob(jobs []jobset.ReplicatedJob, mpi bool) {
	names := []corev1.EnvVar{jobName()}
	if mpi {
		forwarded := jobName()
		forwarded.Name = "OMPI_" + forwarded.Name
		names = append(names, forwarded)
	}
	for i := range jobs {
		c := request.Container(&jobs[i], wellknown.NodeName)
		if c == nil || isInitializer(&jobs[i]) {
			continue
		}
		for _, name := range names {
			at := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == name.Name })
			if at < 0 {
				c.Env = append(c.Env, name)
				continue
			}
			c.Env[at] = name
		}
	}
}

// keepSuccess ensures that the gate is not the only job whose completion means success.
func keepSuccess(spec *jobset.JobSetSpec) {
	policy := spec.SuccessPolicy
	if policy == nil || policy.Operator != jobset.OperatorAny || len(policy.TargetReplicatedJobs) > 0 {
		return
	}
	for i := range spec.ReplicatedJobs {
		if !isInitializer(&spec.ReplicatedJobs[i]) {
			policy.TargetReplicatedJobs = append(policy.TargetReplicatedJobs, spec.ReplicatedJobs[i].Name)
		}
	}
}
