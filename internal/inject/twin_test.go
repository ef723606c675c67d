// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/seedtest"
	"github.com/kubeflow/datacache/test/kit/stocktest"
)

// runtimeOf returns a runtime's spec with the jobs.
func runtimeOf(jobs ...jobset.ReplicatedJob) *trainer.TrainingRuntimeSpec {
	return &trainer.TrainingRuntimeSpec{Template: trainer.JobSetTemplateSpec{Spec: jobset.JobSetSpec{ReplicatedJobs: jobs}}}
}

// jobOf returns a job with one container and, if not empty, an ancestor label.
func jobOf(name, containerName, ancestor string, dependencies ...jobset.DependsOn) jobset.ReplicatedJob {
	job := jobset.ReplicatedJob{Name: name, Replicas: 1, DependsOn: dependencies}
	job.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: containerName, Image: "x"}}
	if ancestor != "" {
		job.Template.ObjectMeta = metav1.ObjectMeta{Labels: map[string]string{ancestorLabel: ancestor}}
	}
	return job
}

func complete(name string) jobset.DependsOn {
	return jobset.DependsOn{Name: name, Status: jobset.DependencyComplete}
}

func ready(name string) jobset.DependsOn {
	return jobset.DependsOn{Name: name, Status: jobset.DependencyReady}
}

func TestTwinDependencies(t *testing.T) {
	five := []jobset.DependsOn{complete("a"), complete("b"), complete("c"), complete("d"), complete(wellknown.StepName)}
	tests := []struct {
		name   string
		source *trainer.TrainingRuntimeSpec
		want   map[string][]jobset.DependsOn // by job, sorted by name
		order  []string
	}{
		{"training alone", runtimeOf(jobOf("node", "node", "trainer")),
			map[string][]jobset.DependsOn{"node": {complete(wellknown.StepName)}}, []string{wellknown.StepName, "node"}},
		{"launcher reaches it through the nodes", runtimeOf(jobOf("node", "node", ""), jobOf("launcher", "node", "trainer", ready("node"))),
			map[string][]jobset.DependsOn{"node": {complete(wellknown.StepName)}, "launcher": {ready("node")}}, []string{wellknown.StepName, "node", "launcher"}},
		{"model initializer does not wait", runtimeOf(jobOf("model-initializer", "model-initializer", ""), jobOf("node", "node", "", complete("model-initializer"))),
			map[string][]jobset.DependsOn{"node": {complete("model-initializer"), complete(wellknown.StepName)}}, []string{wellknown.StepName, "model-initializer", "node"}},
		{"model initializer by its label", runtimeOf(jobOf("weights", "w", "model-initializer"), jobOf("node", "node", "")),
			map[string][]jobset.DependsOn{"node": {complete(wellknown.StepName)}}, []string{wellknown.StepName, "weights", "node"}},
		{"a dataset initializer in its place", runtimeOf(jobOf(wellknown.StepName, wellknown.StepName, wellknown.StepName), jobOf("node", "node", "", complete(wellknown.StepName))),
			map[string][]jobset.DependsOn{"node": {complete(wellknown.StepName)}}, []string{wellknown.StepName, "node"}},
		{"Ready is not enough", runtimeOf(jobOf(wellknown.StepName, wellknown.StepName, wellknown.StepName), jobOf("node", "node", "", ready(wellknown.StepName))),
			map[string][]jobset.DependsOn{"node": {complete(wellknown.StepName)}}, []string{wellknown.StepName, "node"}},
		{"a dataset initializer behind others, which waits itself",
			runtimeOf(jobOf("early", "node", ""), jobOf(wellknown.StepName, wellknown.StepName, wellknown.StepName, complete("early")), jobOf("node", "node", "", complete(wellknown.StepName))),
			map[string][]jobset.DependsOn{"early": {complete(wellknown.StepName)}, "node": {complete(wellknown.StepName)}}, []string{wellknown.StepName, "early", "node"}},
		{"a dataset initializer of another name", runtimeOf(jobOf("data", wellknown.StepName, wellknown.StepName), jobOf("node", "node", "", complete("data"), ready("data"))),
			map[string][]jobset.DependsOn{"node": {complete(wellknown.StepName)}}, []string{wellknown.StepName, "node"}},
		{"five dependencies, one of which waits",
			runtimeOf(jobOf(wellknown.StepName, wellknown.StepName, ""), jobOf("a", "x", ""), jobOf("b", "x", ""), jobOf("c", "x", ""), jobOf("d", "x", ""), jobOf("node", "node", "", five...)),
			map[string][]jobset.DependsOn{"a": {complete(wellknown.StepName)}, "b": {complete(wellknown.StepName)}, "c": {complete(wellknown.StepName)}, "d": {complete(wellknown.StepName)}, "node": five},
			[]string{wellknown.StepName, "a", "b", "c", "d", "node"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.source.DeepCopy()
			twin, err := Twin(tt.source, Gate{Image: image})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, tt.source); diff != "" {
				t.Errorf("the source was changed (-before +after):\n%s", diff)
			}
			got, order := map[string][]jobset.DependsOn{}, []string{}
			for _, job := range twin.Template.Spec.ReplicatedJobs {
				order = append(order, job.Name)
				if job.DependsOn != nil {
					got[job.Name] = job.DependsOn
				}
			}
			if diff := cmp.Diff(tt.order, order); diff != "" {
				t.Errorf("jobs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("dependencies (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTwinRefuses(t *testing.T) {
	inOrder := runtimeOf(jobOf("node", "node", "trainer"))
	inOrder.Template.Spec.StartupPolicy = &jobset.StartupPolicy{StartupPolicyOrder: jobset.InOrder}
	initializers := []jobset.ReplicatedJob{}
	var dependencies []jobset.DependsOn
	for i := range maxDependencies {
		name := fmt.Sprint("weights", i)
		initializers = append(initializers, jobOf(name, "w", "model-initializer"))
		dependencies = append(dependencies, complete(name))
	}
	full := runtimeOf(append(initializers, jobOf("node", "node", "", dependencies...))...)
	tests := []struct {
		name   string
		source *trainer.TrainingRuntimeSpec
		want   string
	}{
		{"no jobs", runtimeOf(), "spec.template.spec.replicatedJobs is empty: there is nothing to train with"},
		{"nothing that trains", runtimeOf(jobOf("node", "worker", "trainer")), `no job has a container named "node", the one that trains and must be told where its cache is`},
		{"in order", inOrder, "spec.template.spec.startupPolicy is InOrder, which JobSet takes no dependsOn beside, and by which training would start before the cache is ready: " +
			"give the jobs dependsOn instead"},
		{"no room", full, `job "node" depends on 5 jobs, the most that JobSet takes, and none of them waits for the step dataset-initializer: take one out`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			twin, err := Twin(tt.source, Gate{Image: image})
			if twin != nil || err == nil || err.Error() != tt.want {
				t.Errorf("got %v, %v\nwant %s", twin, err, tt.want)
			}
		})
	}
}

// TestTwinKeepsThePlatformsDefaults checks that variables of the replaced step's program are removed, and that those for caches stay
// and can be parsed.
func TestTwinKeepsThePlatformsDefaults(t *testing.T) {
	step := jobOf(wellknown.StepName, wellknown.StepName, wellknown.StepName)
	step.Template.Spec.Template.Spec.Containers[0].Env = append(
		variables("CACHE_IMAGE=old", "STORAGE_URI=hf://x/y", "WORKER_MEM=64Gi", "READY_TIMEOUT=3h", "AWS_REGION=eu-1", "TRAIN_JOB_NAME=fixed"),
		corev1.EnvVar{Name: "ACCESS_TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "token"}}})
	twin, err := Twin(runtimeOf(step, jobOf("node", "node", "")), Gate{Image: image, Env: variables("READY_TIMEOUT=1h", "LOG_LEVEL=debug")})
	if err != nil {
		t.Fatal(err)
	}
	want := append(variables("AWS_REGION=eu-1", "LOG_LEVEL=debug", "READY_TIMEOUT=3h"), jobName())
	want = append(slices.Insert(want, 2, podUID()), variables("WORKER_MEM=64Gi")...)
	if diff := cmp.Diff(want, request.SpecStep(twin).Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	asked, errs := request.Read(trainJob(table, location), "").Parse(request.SpecStep(twin))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if memory := asked.Cache.Arrow.DataNode.Resources.Requests.Memory().String(); memory != "64Gi" {
		t.Errorf("data nodes of %s, want the platform's 64Gi", memory)
	}
}

func TestTwinSuccess(t *testing.T) {
	tests := []struct {
		name   string
		policy *jobset.SuccessPolicy
		want   *jobset.SuccessPolicy
	}{
		{"default", nil, nil},
		{"all", &jobset.SuccessPolicy{Operator: jobset.OperatorAll}, &jobset.SuccessPolicy{Operator: jobset.OperatorAll}},
		{"any of some", &jobset.SuccessPolicy{Operator: jobset.OperatorAny, TargetReplicatedJobs: []string{"node"}},
			&jobset.SuccessPolicy{Operator: jobset.OperatorAny, TargetReplicatedJobs: []string{"node"}}},
		{"any would be the gate", &jobset.SuccessPolicy{Operator: jobset.OperatorAny},
			&jobset.SuccessPolicy{Operator: jobset.OperatorAny, TargetReplicatedJobs: []string{"node", "launcher"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			source := runtimeOf(jobOf("model-initializer", "m", ""), jobOf("node", "node", ""), jobOf("launcher", "node", ""))
			source.Template.Spec.SuccessPolicy = tt.policy
			twin, err := Twin(source, Gate{Image: image})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, twin.Template.Spec.SuccessPolicy); diff != "" {
				t.Errorf("success policy (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGateResources(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	tests := []struct {
		name        string
		given, want corev1.ResourceRequirements
	}{
		{"nothing", corev1.ResourceRequirements{}, corev1.ResourceRequirements{Requests: list("100m", "64Mi"), Limits: list("1", "64Mi")}},
		{"memory limit alone, on which the SDK would fail",
			corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
			corev1.ResourceRequirements{Requests: list("100m", "1Gi"), Limits: list("1", "1Gi")}},
		{"small requests alone", corev1.ResourceRequirements{Requests: list("10m", "32Mi")}, corev1.ResourceRequirements{Requests: list("10m", "32Mi"), Limits: list("1", "64Mi")}},
		{"large requests alone", corev1.ResourceRequirements{Requests: list("3", "2Gi")}, corev1.ResourceRequirements{Requests: list("3", "2Gi"), Limits: list("3", "2Gi")}},
		{"limits alone", corev1.ResourceRequirements{Limits: list("500m", "128Mi")}, corev1.ResourceRequirements{Requests: list("500m", "128Mi"), Limits: list("500m", "128Mi")}},
		{"both", corev1.ResourceRequirements{Requests: list("1", "1Gi"), Limits: list("2", "2Gi")}, corev1.ResourceRequirements{Requests: list("1", "1Gi"), Limits: list("2", "2Gi")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Gate{Resources: tt.given}.resources()); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTwinOfTwin checks for the stock runtimes and for random ones that a twin's twin equals the twin.
func TestTwinOfTwin(t *testing.T) {
	gate := Gate{Image: image, Env: variables("B=1", "AWS_REGION=x"), ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}
	check := func(name string, source *trainer.TrainingRuntimeSpec) {
		once, err := Twin(source, gate)
		if err != nil {
			return
		}
		twice, err := Twin(once, gate)
		if err != nil {
			t.Errorf("%s: the twin of its twin: %v", name, err)
			return
		}
		if diff := cmp.Diff(once, twice); diff != "" {
			t.Errorf("%s: the twin's twin (-twin +twice):\n%s", name, diff)
		}
		if !request.HasGate(TwinLabels(nil), once) {
			t.Errorf("%s: HasGate does not know its own", name)
		}
		everyTrainingJobWaits(t, name, once)
	}
	for _, source := range stocktest.Runtimes(t) {
		check(source.Name, &source.Spec)
	}
	rng := seedtest.New(t)
	for i := range 300 {
		check(fmt.Sprintf("random runtime %d", i), randomRuntime(rng))
	}
}

// everyTrainingJobWaits follows the dependencies as JobSet does, and checks that every training job waits for the gate.
func everyTrainingJobWaits(t *testing.T, name string, spec *trainer.TrainingRuntimeSpec) {
	t.Helper()
	waits := map[string]bool{}
	for i, job := range spec.Template.Spec.ReplicatedJobs {
		if i == 0 && (job.Name != wellknown.StepName || len(job.DependsOn) > 0) {
			t.Errorf("%s: the first job is %s with dependencies %v", name, job.Name, job.DependsOn)
		}
		waited := false
		for _, on := range job.DependsOn {
			if _, earlier := waits[on.Name]; !earlier {
				t.Errorf("%s: job %s depends on %s, which does not come before it", name, job.Name, on.Name)
			}
			waited = waited || waits[on.Name] && (on.Name != wellknown.StepName || on.Status == jobset.DependencyComplete)
		}
		if len(job.DependsOn) > maxDependencies {
			t.Errorf("%s: job %s has %d dependencies", name, job.Name, len(job.DependsOn))
		}
		if !isInitializer(&job) && !waited {
			t.Errorf("%s: job %s does not wait", name, job.Name)
		}
		waits[job.Name] = waited || i == 0
	}
}

// randomRuntime returns a runtime with up to eight jobs that depend on earlier ones.
func randomRuntime(rng *rand.Rand) *trainer.TrainingRuntimeSpec {
	names := []string{"node", "launcher", wellknown.StepName, "model-initializer", "data", "a", "b", "c"}
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:1+rng.IntN(len(names))]
	var jobs []jobset.ReplicatedJob
	for i, name := range names {
		job := jobOf(name, []string{"node", wellknown.StepName, "x"}[rng.IntN(3)], []string{"", "trainer", wellknown.StepName, modelStep}[rng.IntN(4)])
		for _, earlier := range names[:i] {
			if len(job.DependsOn) < maxDependencies && rng.IntN(3) == 0 {
				job.DependsOn = append(job.DependsOn, jobset.DependsOn{Name: earlier, Status: []jobset.DependsOnStatus{"Ready", "Complete"}[rng.IntN(2)]})
			}
		}
		c := &job.Template.Spec.Template.Spec.Containers[0]
		for _, v := range variables("CACHE_IMAGE=x", "TRAIN_JOB_NAME=y", "WORKER_CPU=1", "B=2", "AWS_REGION=z") {
			if rng.IntN(3) == 0 {
				c.Env = append(c.Env, v)
			}
		}
		jobs = append(jobs, job)
	}
	spec := runtimeOf(jobs...)
	if rng.IntN(4) == 0 {
		spec.Template.Spec.SuccessPolicy = &jobset.SuccessPolicy{Operator: jobset.OperatorAny}
	}
	if rng.IntN(4) == 0 {
		spec.Template.Spec.VolumeClaimPolicies = []jobset.VolumeClaimPolicy{{Templates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: stepVolume}}}}}
	}
	return spec
}

// TestGateIsHarmless checks that the gate has no token, no privileges and no writable files, and that exit codes for permanent
// failures end the Job.
func TestGateIsHarmless(t *testing.T) {
	job := Gate{Image: image}.job(request.Step{}, true)
	pod := job.Template.Spec.Template.Spec
	security := pod.Containers[0].SecurityContext
	for what, good := range map[string]bool{
		"token":          !*pod.AutomountServiceAccountToken && pod.ServiceAccountName == "",
		"root":           *pod.SecurityContext.RunAsNonRoot && *security.RunAsNonRoot,
		"seccomp":        pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
		"privilege":      !*security.Privileged && !*security.AllowPrivilegeEscalation && slices.Contains(security.Capabilities.Drop, "ALL"),
		"writing":        *security.ReadOnlyRootFilesystem && pod.Containers[0].VolumeMounts[0].ReadOnly,
		"restart policy": pod.RestartPolicy == corev1.RestartPolicyNever, // podFailurePolicy requires it
		"exit codes":     slices.Equal(job.Template.Spec.PodFailurePolicy.Rules[0].OnExitCodes.Values, []int32{1, 3, 4}),
		"its action":     job.Template.Spec.PodFailurePolicy.Rules[0].Action == batchv1.PodFailurePolicyActionFailJob,
	} {
		if !good {
			t.Errorf("%s: %+v", what, job)
		}
	}
}
