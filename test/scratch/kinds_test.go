// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"errors"
	"strings"
	"testing"

	cmp "github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const replicas = 2 // number of replicas of each job in these tests

// jobSet returns a JobSet with one Job.
func jobSet(namespace, name string) *jobset.JobSet {
	spec := jobSpec(namespace, replicas)
	spec.BackoffLimit = new(int32(0))
	return &jobset.JobSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: jobset.JobSetSpec{
			FailurePolicy:  &jobset.FailurePolicy{MaxRestarts: 1},
			ReplicatedJobs: []jobset.ReplicatedJob{{Name: "node", Replicas: 1, Template: batchv1.JobTemplateSpec{Spec: spec}}},
		},
	}
}

// trainJob returns a TrainJob on a stock runtime that requests its volume with runtimePatches.
func trainJob(t *testing.T, namespace, name string) *trainer.TrainJob {
	t.Helper()
	if err := cluster.InstallRuntimes(t.Context(), "torch-distributed"); err != nil {
		t.Fatal(err)
	}
	pod := &trainer.PodSpecPatch{
		Volumes:    []corev1.Volume{scratchVolume(namespace)},
		Containers: []trainer.ContainerPatch{{Name: "node", VolumeMounts: []corev1.VolumeMount{mount}}},
	}
	job := trainer.ReplicatedJobPatch{Name: "node", Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{Template: &trainer.PodTemplatePatch{Spec: pod}}}}
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{Name: "torch-distributed"},
			Trainer:    &trainer.Trainer{NumNodes: new(int32(replicas))},
			RuntimePatches: []trainer.RuntimePatch{{Manager: "example.com/user", TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{
				Template: &trainer.JobSetTemplatePatch{Spec: &trainer.JobSetSpecPatch{ReplicatedJobs: []trainer.ReplicatedJobPatch{job}}},
			}}},
		},
	}
}

func leaderWorkerSet(namespace, name string) *lws.LeaderWorkerSet {
	return &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: lws.LeaderWorkerSetSpec{
			StartupPolicy: lws.LeaderCreatedStartupPolicy, RolloutStrategy: lws.RolloutStrategy{Type: lws.RollingUpdateStrategyType},
			LeaderWorkerTemplate: lws.LeaderWorkerTemplate{
				Size: new(int32(replicas)), WorkerTemplate: template(namespace, corev1.RestartPolicyAlways), RestartPolicy: lws.RecreateGroupOnPodRestart,
			},
		},
	}
}

func statefulSet(namespace, name string) *appsv1.StatefulSet {
	labels := map[string]string{"app": name}
	pod := template(namespace, corev1.RestartPolicyAlways)
	pod.Labels = labels
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       appsv1.StatefulSetSpec{Replicas: new(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod},
	}
}

// workflow returns an object of a kind that the manager may not read; the test creates its pods.
func workflow(namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("example.com/v1")
	u.SetKind("Workflow")
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// kinds checks for every kind of job that each replica gets a claim, which its pods use and the job owns, and that the claims are
// deleted with the job.
func kinds(t *testing.T) {
	tests := []struct {
		apiVersion, kind string
		job              func(namespace string) client.Object
		claims           []string
	}{
		{"trainer.kubeflow.org/v1alpha1", "TrainJob", func(ns string) client.Object { return trainJob(t, ns, "train") },
			[]string{"scratch-train-node-0-0", "scratch-train-node-0-1"}},
		{"jobset.x-k8s.io/v1alpha2", "JobSet", func(ns string) client.Object { return jobSet(ns, "set") },
			[]string{"scratch-set-node-0-0", "scratch-set-node-0-1"}},
		{"batch/v1", "Job", func(ns string) client.Object { return indexedJob(ns, "job", replicas) }, []string{"scratch-job-0", "scratch-job-1"}},
		{"leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", func(ns string) client.Object { return leaderWorkerSet(ns, "serve") },
			[]string{"scratch-serve-0", "scratch-serve-0-1"}},
		{"apps/v1", "StatefulSet", func(ns string) client.Object { return statefulSet(ns, "db") }, []string{"scratch-db-0", "scratch-db-1"}},
		{"v1", "Pod", func(ns string) client.Object { return barePod(ns, "pod") }, []string{"scratch-pod"}},
		{"example.com/v1", "Workflow", func(ns string) client.Object { return workflow(ns, "flow") }, []string{"scratch-flow-a"}},
	}
	for _, tt := range tests {
		t.Run(tt.kind, func(t *testing.T) {
			t.Parallel()
			ns := disks(t, len(tt.claims))
			job := tt.job(ns)
			cluster.Create(t, job)
			owner := metav1.OwnerReference{APIVersion: tt.apiVersion, Kind: tt.kind, Name: job.GetName(), UID: job.GetUID(), Controller: new(true)}
			if tt.kind == "Workflow" {
				pod := barePod(ns, "flow-a")
				pod.OwnerReferences = []metav1.OwnerReference{owner}
				cluster.Create(t, pod)
			}
			haveClaims(t, ns, tt.claims...)
			running(t, ns, len(tt.claims), nil)
			for _, c := range claims(t, ns) {
				claimIsRight(t, &c, owner)
			}
			cluster.Delete(t, job)
			haveClaims(t, ns)
		})
	}
}

// claimIsRight checks a claim that is bound to a volume of disks.
func claimIsRight(t *testing.T, c *corev1.PersistentVolumeClaim, owner metav1.OwnerReference) {
	t.Helper()
	if diff := cmp.Diff([]metav1.OwnerReference{owner}, c.OwnerReferences); diff != "" {
		t.Errorf("owners of claim %s (-want +got):\n%s", c.Name, diff)
	}
	template := scratchVolume(c.Namespace).Ephemeral.VolumeClaimTemplate
	spec := c.Spec.DeepCopy()
	if spec.VolumeName == "" || c.Status.Phase != corev1.ClaimBound {
		t.Errorf("claim %s is %s to volume %q while its pod runs", c.Name, c.Status.Phase, spec.VolumeName)
	}
	spec.VolumeName, spec.VolumeMode = "", nil
	if diff := cmp.Diff(template.Spec, *spec); diff != "" {
		t.Errorf("claim %s (-template +claim):\n%s", c.Name, diff)
	}
	if replica := strings.TrimPrefix(c.Name, "scratch-"); c.Annotations[claim.AnnotationReplica] != replica || c.Labels[claim.LabelVolume] != "scratch" ||
		c.Labels["team"] != "a" {
		t.Errorf("claim %s has labels %v and annotations %v", c.Name, c.Labels, c.Annotations)
	}
}

// ordinaryVolume checks that the manager ignores a volume without the annotation, whose claim the pod owns.
func ordinaryVolume(t *testing.T) {
	ns := disks(t, 1)
	pod := barePod(ns, "pod")
	pod.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Annotations = nil
	cluster.Create(t, pod)
	if claim.Gated(pod) || len(pod.Labels) > 0 || len(pod.Annotations) > 0 {
		t.Errorf("the pod has gates %v, labels %v, annotations %v", pod.Spec.SchedulingGates, pod.Labels, pod.Annotations)
	}
	haveClaims(t, ns, "pod-scratch")
	running(t, ns, 1, nil)
	if c := claims(t, ns)[0]; c.Labels[claim.LabelVolume] != "" || !metav1.IsControlledBy(&c, pod) {
		t.Errorf("the claim is not Kubernetes' own: %+v", c.ObjectMeta)
	}
}

// refused checks that pods that can't have a scratch volume are rejected, with the reason where their users look.
func refused(t *testing.T) { refusedWith(t, "at most 253 are") }

// refusedWith is refused with other words about a claim's name that is too long: without the webhook, the API server itself rejects it.
func refusedWith(t *testing.T, tooLong string) {
	t.Helper()
	ns := cluster.Namespace(t)
	job := indexedJob(ns, "plain", 1)
	job.Spec.CompletionMode = nil
	cluster.Create(t, job)
	awaitEvent(t, ns, "Job", "FailedCreate", "metadata.generateName", "completionMode: Indexed")

	for words, edit := range map[string]func(*corev1.Pod){
		`supported values: "per-replica"`: func(p *corev1.Pod) {
			p.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Annotations[claim.Mark] = "shared"
		},
		"use nodeSelector": func(p *corev1.Pod) { p.Spec.NodeName = "node-a" },
		tooLong:            func(p *corev1.Pod) { p.Name = strings.Repeat("n", 246) },
	} {
		pod := barePod(ns, "pod")
		edit(pod)
		if err := cluster.Client.Create(t.Context(), pod); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want the pod refused with %q", err, words)
		}
	}
}

// restarts checks that a replica's next pod gets the claim of its last pod.
func restarts(t *testing.T) {
	tests := map[string]struct {
		job    func(namespace string) client.Object
		claims []string
		blow   *kubetest.Act // what the first pods do once they all run; nil: they are deleted
	}{
		"StatefulSet":     {func(ns string) client.Object { return statefulSet(ns, "db") }, []string{"scratch-db-0", "scratch-db-1"}, nil},
		"JobSet":          {func(ns string) client.Object { return jobSet(ns, "set") }, []string{"scratch-set-node-0-0", "scratch-set-node-0-1"}, &kubetest.Act{Exit: new(int32(1))}},
		"LeaderWorkerSet": {func(ns string) client.Object { return leaderWorkerSet(ns, "serve") }, []string{"scratch-serve-0", "scratch-serve-0-1"}, &kubetest.Act{Restarts: 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := disks(t, replicas)
			cluster.Create(t, tt.job(ns))
			before := haveClaims(t, ns, tt.claims...)
			first := running(t, ns, replicas, nil)
			cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
				if first[pod.UID] && tt.blow != nil {
					return *tt.blow
				}
				return kubetest.Act{}
			})
			for _, pod := range pods(t, ns) {
				if tt.blow == nil {
					cluster.Delete(t, &pod)
				}
			}
			running(t, ns, replicas, first)
			sameClaims(t, ns, before)
			for _, pod := range pods(t, ns) {
				want := claim.Name("scratch", claim.Replica(&pod))
				if ref := pod.Spec.Volumes[0].PersistentVolumeClaim; ref == nil || ref.ClaimName != want {
					t.Errorf("pod %s has %+v, want claim %s", pod.Name, ref, want)
				}
			}
		})
	}
}

// suspended checks that a job that is created suspended gets no claims, and that one that is suspended later keeps them for its next
// pods.
func suspended(t *testing.T) {
	tests := map[string]struct {
		claims []string
		job    func(namespace string) client.Object
		set    func(job client.Object, suspend bool)
		is     func(job client.Object) bool
	}{
		"Job": {
			[]string{"scratch-job-0", "scratch-job-1"},
			func(ns string) client.Object { return indexedJob(ns, "job", replicas) },
			func(job client.Object, suspend bool) { job.(*batchv1.Job).Spec.Suspend = &suspend },
			func(job client.Object) bool {
				for _, c := range job.(*batchv1.Job).Status.Conditions {
					if c.Type == batchv1.JobSuspended {
						return c.Status == corev1.ConditionTrue
					}
				}
				return false
			},
		},
		"TrainJob": {
			[]string{"scratch-train-node-0-0", "scratch-train-node-0-1"},
			func(ns string) client.Object { return trainJob(t, ns, "train") },
			func(job client.Object, suspend bool) { job.(*trainer.TrainJob).Spec.Suspend = &suspend },
			func(job client.Object) bool {
				for _, c := range job.(*trainer.TrainJob).Status.Conditions {
					if c.Type == trainer.TrainJobSuspended {
						return c.Status == metav1.ConditionTrue
					}
				}
				return false
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := disks(t, replicas)
			job := tt.job(ns)
			tt.set(job, true)
			cluster.Create(t, job)
			isSuspended := func() error {
				if !tt.is(job) {
					return errors.New("it is not")
				}
				return nil
			}
			cluster.Become(t, job, ns, job.GetName(), "suspended", isSuspended)
			haveNothing(t, ns)

			change(t, job, func() { tt.set(job, false) })
			before := haveClaims(t, ns, tt.claims...)
			first := running(t, ns, replicas, nil)
			change(t, job, func() { tt.set(job, true) })
			cluster.Become(t, job, ns, job.GetName(), "suspended", isSuspended)
			noPods(t, ns)
			sameClaims(t, ns, before)
			change(t, job, func() { tt.set(job, false) })
			running(t, ns, replicas, first)
			sameClaims(t, ns, before)
		})
	}
}

func haveNothing(t *testing.T, namespace string) {
	t.Helper()
	if p, c := pods(t, namespace), claims(t, namespace); len(p) > 0 || len(c) > 0 {
		t.Errorf("there are %d pods and %d claims, want none", len(p), len(c))
	}
}

func noPods(t *testing.T, namespace string) {
	t.Helper()
	running(t, namespace, 0, map[types.UID]bool{})
}

// change edits an object, and retries after conflicts.
func change(t *testing.T, object client.Object, edit func()) {
	t.Helper()
	kubetest.Eventually(t, "change "+object.GetName(), func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		edit()
		return cluster.Client.Update(t.Context(), object)
	})
}
