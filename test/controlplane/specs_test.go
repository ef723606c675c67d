// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestSpecs checks the objects that the stock managers make of a TrainJob: the JobSet, the step's Job, and the cache's pods.
func TestSpecs(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "s3-keys"}, StringData: map[string]string{"AWS_SECRET_ACCESS_KEY": "k"}})
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act { return kubetest.Act{Unready: isCachePod(pod)} })
	job := cacheJob(ns, "train", "cache://demo/reviews", append(tableEnv(), variables("WORKER_MEM", "3Gi", "WORKER_CPU", "1")...)...)
	job.Spec.Initializer.Dataset.SecretRef = &corev1.LocalObjectReference{Name: "s3-keys"}
	cluster.Create(t, job)

	set := appears(t, &jobset.JobSet{}, ns, "train")
	jobs := map[string]jobset.ReplicatedJob{}
	for _, j := range set.Spec.ReplicatedJobs {
		jobs[j.Name] = j
	}
	if first := set.Spec.ReplicatedJobs[0].Name; first != wellknown.StepName {
		t.Errorf("the JobSet's first job is %s, want the step", first)
	}
	gateIsRight(t, jobs[wellknown.StepName].Template.Spec)
	node := jobs[wellknown.NodeName]
	if diff := cmp.Diff([]jobset.DependsOn{{Name: wellknown.StepName, Status: jobset.DependencyComplete}}, node.DependsOn); diff != "" {
		t.Errorf("what training waits for (-want +got):\n%s", diff)
	}
	knowsItsJob(t, "training", node.Template.Spec.Template.Spec.Containers[0])

	step := appears(t, &batchv1.Job{}, ns, "train-"+wellknown.StepName+"-0")
	gateIsRight(t, step.Spec)
	for _, pod := range cachePods(t, ns, 3) {
		cachePodIsRight(t, pod)
	}
}

// gateIsRight checks the Job of the step: it has no permissions beyond waiting, and reports why it ended.
func gateIsRight(t *testing.T, spec batchv1.JobSpec) {
	t.Helper()
	pod := spec.Template.Spec
	gate := pod.Containers[0]
	if gate.Name != wellknown.StepName || gate.Image != image || strings.Join(gate.Args, " ") != "initializer --notices=:8080" {
		t.Errorf("the step's container is %s of %s with %q", gate.Name, gate.Image, gate.Args)
	}
	knowsItsJob(t, "the step", gate)
	if len(gate.EnvFrom) > 0 {
		t.Errorf("the step is given %+v: keys are for the cache's pods alone", gate.EnvFrom)
	}
	if len(gate.VolumeMounts) == 0 || gate.VolumeMounts[0].Name != "initializer" {
		t.Errorf("the step mounts %+v, want the volume initializer that Trainer looks for", gate.VolumeMounts)
	}
	if gate.Resources.Limits.Cpu().IsZero() {
		t.Error("the step has no limit of CPU: the SDK can't read such pods")
	}
	if pod.RestartPolicy != corev1.RestartPolicyNever || spec.PodFailurePolicy == nil {
		t.Errorf("the step restarts %s, with the failure policy %+v; want Never, and codes that end it", pod.RestartPolicy, spec.PodFailurePolicy)
	}
	isRestricted(t, "the step", pod)
}

// knowsItsJob checks TRAIN_JOB_NAME, with which clients find their cache.
func knowsItsJob(t *testing.T, whose string, c corev1.Container) {
	t.Helper()
	for _, v := range c.Env {
		if v.Name == "TRAIN_JOB_NAME" && v.ValueFrom != nil && v.ValueFrom.FieldRef.FieldPath == "metadata.labels['"+jobset.JobSetNameKey+"']" {
			return
		}
	}
	t.Errorf("%s does not know its TRAIN_JOB_NAME: %+v", whose, c.Env)
}

func cachePodIsRight(t *testing.T, pod corev1.Pod) {
	t.Helper()
	c := pod.Spec.Containers[0]
	if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet == nil || c.ReadinessProbe.HTTPGet.Path != "/ready" {
		t.Errorf("pod %s has the readiness probe %+v, want GET /ready", pod.Name, c.ReadinessProbe)
	}
	if c.LivenessProbe == nil || c.LivenessProbe.HTTPGet == nil || c.LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("pod %s has the liveness probe %+v, want GET /healthz", pod.Name, c.LivenessProbe)
	}
	from := []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s3-keys"}}}}
	if c.Name == wellknown.RoleHead { // and the pinned snapshot
		from = append(from, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "train-cache"}}})
	}
	if diff := cmp.Diff(from, c.EnvFrom); diff != "" {
		t.Errorf("pod %s: keys and pin (-want +got):\n%s", pod.Name, diff)
	}
	if memory := c.Resources.Limits.Memory().String(); strings.HasPrefix(pod.Name, "train-cache-0-") && memory != "3Gi" {
		t.Errorf("data node %s has %s of memory, want 3Gi", pod.Name, memory)
	}
	if !c.Resources.Requests.Memory().Equal(*c.Resources.Limits.Memory()) {
		t.Errorf("pod %s requests %s of memory and may take %s, want as much", pod.Name, c.Resources.Requests.Memory(), c.Resources.Limits.Memory())
	}
	isRestricted(t, "pod "+pod.Name, pod.Spec)
}

// isRestricted checks the requirements of the restricted Pod Security Standard, and that no token is mounted.
func isRestricted(t *testing.T, whose string, pod corev1.PodSpec) {
	t.Helper()
	if mounts := pod.AutomountServiceAccountToken; mounts != nil && *mounts {
		t.Errorf("%s mounts a token", whose)
	}
	own := pod.Containers[0].SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	all := pod.SecurityContext
	if all == nil {
		all = &corev1.PodSecurityContext{}
	}
	is := func(values ...*bool) bool {
		for _, v := range values {
			if v != nil {
				return *v
			}
		}
		return false
	}
	seccomp := own.SeccompProfile
	if seccomp == nil {
		seccomp = all.SeccompProfile
	}
	switch {
	case !is(own.RunAsNonRoot, all.RunAsNonRoot):
		t.Errorf("%s may run as root", whose)
	case !is(own.ReadOnlyRootFilesystem):
		t.Errorf("%s may write its root file system", whose)
	case own.AllowPrivilegeEscalation == nil || *own.AllowPrivilegeEscalation:
		t.Errorf("%s may gain privileges", whose)
	case seccomp == nil || seccomp.Type != corev1.SeccompProfileTypeRuntimeDefault:
		t.Errorf("%s has the seccomp profile %+v", whose, seccomp)
	case own.Capabilities == nil || len(own.Capabilities.Drop) != 1 || own.Capabilities.Drop[0] != "ALL":
		t.Errorf("%s keeps capabilities: %+v", whose, own.Capabilities)
	}
}

// cachePods waits for the pods of a namespace's only cache.
func cachePods(t *testing.T, namespace string, count int) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	kubetest.Eventually(t, fmt.Sprintf("%d pods of the cache", count), func() error {
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.HasLabels{wellknown.LabelCache}); err != nil {
			return err
		}
		if len(pods.Items) != count {
			return errors.New(fmt.Sprint("there are ", len(pods.Items)))
		}
		return nil
	})
	return pods.Items
}
