// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestStates checks diagnoses of states that last too briefly on a real API server, or take a lost machine.
func TestStates(t *testing.T) {
	t.Parallel()
	ended := &batchv1.Job{ObjectMeta: ofJob("train-dataset-initializer-0"), Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}}}
	training := &batchv1.Job{ObjectMeta: ofJob("train-node-0"), Status: batchv1.JobStatus{Active: 1}}
	failed := training.DeepCopy()
	failed.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Message: "Job has reached the specified backoff limit"}}
	set := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train"}}
	ready := cache(v1alpha1.StateReady, metav1.ConditionTrue, "Loaded")
	for name, tt := range map[string]struct {
		objects []client.Object
		want    string // the last finding: WAITS or ok, subject, state, fix
	}{
		"a data node is lost": {
			[]client.Object{cache(v1alpha1.StateDegraded, metav1.ConditionFalse, "Reloading")}, "WAITS DataCache team/train: Degraded: Reloading: as the cache says",
		},
		"tokens can't be checked": {
			[]client.Object{with(cache(v1alpha1.StateDegraded, metav1.ConditionFalse, "Reloading"), v1alpha1.ConditionTokensUnverifiable, metav1.ConditionTrue, "NoKeys", "this cluster has no keys")},
			"WAITS DataCache team/train: Degraded: Reloading: as the cache says; it may refuse its readers, TokensUnverifiable: this cluster has no keys",
		},
		"a wrong endpoint": {
			[]client.Object{saying(cache(v1alpha1.StatePlanning, metav1.ConditionFalse, "Planning"), `planning: open table s3://lake/t: dial tcp 127.0.0.1:1: connect: connection refused`)},
			"WAITS DataCache team/train: Planning: Planning: planning: open table s3://lake/t: dial tcp 127.0.0.1:1: connect: connection refused; fix: correct the endpoint of the store",
		},
		"a wrong endpoint, a minute later": {
			[]client.Object{saying(cache(v1alpha1.StateFailed, metav1.ConditionFalse, "LoadFailed"), `no progress for 1m0s: Get "http://s3.typo/": dial tcp: lookup s3.typo: no such host`)},
			`WAITS DataCache team/train: Failed: LoadFailed: no progress for 1m0s: Get "http://s3.typo/": dial tcp: lookup s3.typo: no such host; fix: correct the endpoint of the store`,
		},
		"the cache sends nothing": {
			[]client.Object{notRead(ready, v1alpha1.ReasonRanksWait, "the ranks wait for the cache: it has sent nothing on their 2 streams since 12:00:00 UTC")},
			"WAITS DataCache team/train: Ready: RanksWait: the ranks wait for the cache: it has sent nothing on their 2 streams since 12:00:00 UTC; fix: look at `kubectl datacache top`",
		},
		"no rank reads": {
			[]client.Object{notRead(ready, v1alpha1.ReasonNotRead, "no rank has asked for rows since 12:00:00 UTC"), set, ended, training, pod(corev1.PodRunning, nil)},
			"? pods of the TrainJob: 1 of 1 run; DataCache train: no rank has asked for rows since 12:00:00 UTC; fix: if the ranks neither compute",
		},
		"no JobSet":           {[]client.Object{ready}, "WAITS JobSet train: does not exist: Trainer has not created it; fix: ask who runs Trainer"},
		"no Job":              {[]client.Object{ready, set}, "WAITS JobSet train: has created no Job; fix: ask who runs JobSet"},
		"the next Job":        {[]client.Object{ready, set, ended}, "WAITS JobSet train: has created no more Jobs since 1 ended"},
		"no pod yet":          {[]client.Object{ready, set, ended, &batchv1.Job{ObjectMeta: ofJob("train-node-0")}}, "WAITS Job train-node-0: has none of its 1 pods yet"},
		"a failed Job":        {[]client.Object{ready, set, ended, failed}, "WAITS Job train-node-0: failed: Job has reached the specified backoff limit; fix: kubectl -n team logs -l job-name=train-node-0"},
		"no scheduler":        {[]client.Object{ready, set, ended, training, pod(corev1.PodPending, nil)}, "WAITS pod train-node-0-0: no scheduler has looked at it: is there one named absent?"},
		"a kubelet is silent": {[]client.Object{ready, set, ended, training, pod(corev1.PodPending, func(p *corev1.Pod) { p.Spec.NodeName = "n1" })}, "WAITS pod train-node-0-0: node n1 has not begun to start it"},
		"an init container": {[]client.Object{ready, set, ended, training, pod(corev1.PodPending, func(p *corev1.Pod) {
			p.Spec.NodeName = "n1"
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "fetch", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		})}, "WAITS pod train-node-0-0: its container fetch runs before the others"},
		"evicted": {[]client.Object{ready, set, ended, training, pod(corev1.PodFailed, func(p *corev1.Pod) {
			p.Status.Reason, p.Status.Message = "Evicted", "The node was low on resource: memory."
		})}, "WAITS pod train-node-0-0: failed: Evicted: The node was low on resource: memory."},
		"a machine is lost": {[]client.Object{ready, set, ended, training, pod(corev1.PodRunning, func(p *corev1.Pod) {
			p.Spec.NodeName, p.Finalizers, p.DeletionTimestamp = "n1", []string{"example.com/held"}, &metav1.Time{Time: time.Date(2026, 1, 1, 10, 20, 30, 0, time.UTC)}
		})}, "WAITS pod train-node-0-0: should have ended at 10:20:30 UTC: its node n1 does not answer; fix: if that machine is lost for good: kubectl delete node n1"},
		"it trains": {[]client.Object{ready, set, ended, training, pod(corev1.PodRunning, nil)}, "ok pods of the TrainJob: 1 of 1 run; their logs say how the training goes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			findings, err := Why(t.Context(), holding(t, tt.objects...), nil, client.ObjectKey{Namespace: "team", Name: "train"})
			if err != nil {
				t.Fatal(err)
			}
			last := findings[len(findings)-1]
			got := "ok "
			switch {
			case last.Blocks:
				got = "WAITS "
			case last.Unseen:
				got = "? "
			}
			got += last.Subject + ": " + last.State
			if last.Fix != "" {
				got += "; fix: " + last.Fix
			}
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("the last finding is\n%s, want\n%s", got, tt.want)
			}
		})
	}
}

func ofJob(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "team", Name: name, Labels: map[string]string{wellknown.LabelJobSet: "train"}}
}

// pod returns a training pod in a phase, edited by edit unless it is nil.
func pod(phase corev1.PodPhase, edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: ofJob("train-node-0-0"), Spec: corev1.PodSpec{SchedulerName: "absent"}, Status: corev1.PodStatus{Phase: phase}}
	if edit != nil {
		edit(p)
	}
	return p
}

func cache(state v1alpha1.State, status metav1.ConditionStatus, reason string) *v1alpha1.DataCache {
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train"},
		Status: v1alpha1.DataCacheStatus{State: state, Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: "as the cache says"},
		}},
	}
}

// saying returns the cache with the message of its condition Ready.
func saying(dc *v1alpha1.DataCache, message string) *v1alpha1.DataCache {
	dc.Status.Conditions[0].Message = message
	return dc
}

// notRead returns a copy of the cache that is not read.
func notRead(dc *v1alpha1.DataCache, reason, message string) *v1alpha1.DataCache {
	return with(dc, v1alpha1.ConditionRead, metav1.ConditionFalse, reason, message)
}

// with returns a copy of the cache with one more condition.
func with(dc *v1alpha1.DataCache, kind string, status metav1.ConditionStatus, reason, message string) *v1alpha1.DataCache {
	dc = dc.DeepCopy()
	dc.Status.Conditions = append(dc.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message})
	return dc
}

// holding returns a cluster that has a TrainJob, its runtime, and the objects.
func holding(t *testing.T, objects ...client.Object) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, batchv1.AddToScheme, trainer.AddToScheme, jobset.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	step := jobset.ReplicatedJob{Name: wellknown.StepName}
	step.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: wellknown.StepName}}
	twin := &trainer.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch-data-cache", Labels: map[string]string{wellknown.LabelGate: "true"}}}
	twin.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{step}
	job := &trainer.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train"}, Spec: trainer.TrainJobSpec{
		RuntimeRef:  trainer.RuntimeRef{Name: "torch-data-cache"},
		Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{StorageUri: new("cache://demo/reviews")}},
	}}
	own := []client.Object{job, twin}
	for _, object := range objects { // the fake client writes to them, and tests that run at the same time share some
		own = append(own, object.DeepCopyObject().(client.Object)) //nolint:forcetypeassert // a copy has the object's type
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(own...).Build()
}
