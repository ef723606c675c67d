// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/wellknown"
)

var now = time.Unix(1_800_000_000, 0)

func theCache() *v1alpha1.DataCache {
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "reviews", UID: "uid"},
		Spec: v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{Derive: &v1alpha1.Derive{
			Dataset: "tok", Image: "tokenizer:1", Command: []string{"python3", "tok.py"}, Workers: 2,
			Env: []corev1.EnvVar{{Name: "DATACACHE_WORKERS", Value: "9"}, {Name: "HOME", Value: "/data"}},
		}}},
		Status: v1alpha1.DataCacheStatus{Endpoint: "grpc+tls://reviews-cache-service.team-a:50051", CABundle: "a certificate"},
	}
}

func hashOf(change func(*v1alpha1.DataCache)) string {
	dc := theCache()
	change(dc)
	return jobOf(dc).Annotations[kube.AnnotationPodSettings]
}

func TestJob(t *testing.T) {
	t.Parallel()
	job := jobOf(theCache())
	pod := job.Spec.Template
	env := map[string]string{}
	for _, v := range pod.Spec.Containers[0].Env { // the kubelet takes the last one of a name
		env[v.Name] = v.Value
	}
	if env["DATACACHE_WORKERS"] != "2" || env["HOME"] != "/data" || env["DATACACHE_ENDPOINT"] != "grpc+tls://reviews-cache-service.team-a:50051" {
		t.Errorf("the command has the variables %v", env)
	}
	if pod.Labels[wellknown.LabelCache] != "" || pod.Labels[wellknown.LabelStepOf] != "reviews" || pod.Labels[wellknown.LabelManagedBy] == "" {
		t.Errorf("pods have the labels %v: they must not count as pods of the cache, and the manager's informers must have them", pod.Labels)
	}
	sources := pod.Spec.Volumes[0].Projected.Sources
	if got := sources[0].ServiceAccountToken; got.Path != "own/token" || got.Audience != "datacache.kubeflow.org/namespaces/team-a/datacaches/reviews" {
		t.Errorf("the token is %+v", got)
	}
	if got := sources[1].DownwardAPI.Items[0]; got.Path != "own/ca.crt" || pod.Annotations["datacache.kubeflow.org/authority"] != "a certificate" {
		t.Errorf("the certificate is %+v of %v", got, pod.Annotations)
	}
	before := hashOf(func(*v1alpha1.DataCache) {})
	for what, change := range map[string]func(*v1alpha1.DataCache){
		"the command":   func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Derive.Command[1] = "other.py" },
		"the dataset":   func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Derive.Dataset = "other" },
		"the workers":   func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Derive.Workers = 3 },
		"the authority": func(dc *v1alpha1.DataCache) { dc.Status.CABundle = "another one" },
		"the pods":      func(dc *v1alpha1.DataCache) { dc.Status.ProvisionedTime = new(metav1.NewTime(now)) },
		"retry":         func(dc *v1alpha1.DataCache) { dc.Annotations = map[string]string{kube.AnnotationRetry: "1"} },
	} {
		if hashOf(change) == before {
			t.Errorf("a change of %s does not run the step again", what)
		}
	}
	if hashOf(func(dc *v1alpha1.DataCache) { dc.Status.Datasets = []v1alpha1.Dataset{{Name: "tok"}} }) != before {
		t.Error("the dataset itself runs the step again")
	}
	plain := theCache()
	plain.Status.Endpoint = "grpc://reviews-cache-service.team-a:50051"
	if got := jobOf(plain).Spec.Template.Spec.Volumes; got != nil {
		t.Errorf("a cache without TLS has the volumes %v", got)
	}
}

// podOf returns a pod of the step.
func podOf(name string, age time.Duration, status corev1.PodStatus) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-age))}, Status: status}
}

func failedWith(text string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", Message: text},
	}}}}
}

func TestCondition(t *testing.T) {
	t.Parallel()
	waiting := corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"},
	}}}}
	ended := func(kind batchv1.JobConditionType, age time.Duration) batchv1.JobStatus {
		return batchv1.JobStatus{Succeeded: 1, Conditions: []batchv1.JobCondition{{
			Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-age)), Message: "limit reached",
		}}}
	}
	good, bad := &v1alpha1.Dataset{Name: "tok", State: "Ready", Rows: 7}, &v1alpha1.Dataset{Name: "tok", State: "Failed"}
	for name, tt := range map[string]struct {
		status batchv1.JobStatus
		state  state
		reason string
		words  []string
		again  bool
	}{
		"goes on":           {batchv1.JobStatus{Succeeded: 1}, state{}, "Deriving", []string{"1 of 2 workers"}, false},
		"another try":       {batchv1.JobStatus{}, state{pods: []*corev1.Pod{podOf("a", 2*time.Second, failedWith("")), podOf("b", time.Second, corev1.PodStatus{Phase: corev1.PodRunning})}}, "Deriving", []string{"pod a failed: exit code 3 (Error)"}, false},
		"no image":          {batchv1.JobStatus{}, state{pods: []*corev1.Pod{podOf("a", 0, waiting)}}, "ImagePullBackOff", []string{"pod a: no such image"}, false},
		"no pods":           {batchv1.JobStatus{}, state{warnings: []corev1.Event{{Reason: "FailedCreate", Message: "exceeded quota", InvolvedObject: corev1.ObjectReference{UID: "job"}}}}, "FailedCreate", []string{"exceeded quota"}, false},
		"others' events":    {batchv1.JobStatus{}, state{warnings: []corev1.Event{{Reason: "FailedCreate", InvolvedObject: corev1.ObjectReference{UID: "other"}}}}, "Deriving", nil, false},
		"failed":            {ended(batchv1.JobFailed, 0), state{pods: []*corev1.Pod{podOf("a", time.Second, failedWith(strings.Repeat("x", 3000)+" KeyError: 'text'")), podOf("b", 2*time.Second, failedWith("older"))}}, "DeriveFailed", []string{"pod a failed: ... x", "KeyError: 'text'", "datacache.kubeflow.org/retry"}, false},
		"failed, no pods":   {ended(batchv1.JobFailed, 0), state{}, "DeriveFailed", []string{"limit reached"}, false},
		"made":              {ended(batchv1.JobComplete, 0), state{dataset: good}, "Derived", []string{"dataset tok has 7 rows"}, false},
		"not listed yet":    {ended(batchv1.JobComplete, time.Second), state{}, "Deriving", []string{"not listed"}, false},
		"listed as it was":  {ended(batchv1.JobComplete, time.Second), state{dataset: bad}, "Deriving", []string{"not listed"}, false},
		"puts no dataset":   {ended(batchv1.JobComplete, time.Hour), state{}, "DeriveFailed", []string{"there is no dataset tok", "the command must put it"}, false},
		"its rows are lost": {ended(batchv1.JobComplete, time.Hour), state{dataset: bad}, "DeriveFailed", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tt.state
			s.name, s.now, s.job = "tok", now, jobOf(theCache())
			s.job.UID, s.job.Status = "job", tt.status
			c := s.condition()
			if c.Reason != tt.reason || (c.Status == metav1.ConditionTrue) != (tt.reason == "Derived") || s.again() != tt.again {
				t.Errorf("it is %s %s, again %v", c.Status, c.Reason, s.again())
			}
			for _, words := range tt.words {
				if !strings.Contains(c.Message, words) {
					t.Errorf("it says %q, want %q in it", c.Message, words)
				}
			}
			if len(c.Message) > longest {
				t.Errorf("it says %d bytes", len(c.Message))
			}
		})
	}
}
