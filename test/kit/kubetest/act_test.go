// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// brief has the fields of a pod's status that controllers read.
type brief struct {
	Phase    corev1.PodPhase
	Ready    bool
	State    string
	Last     int32 // exit code
	Restarts int32
	IP       string
}

func briefOf(status corev1.PodStatus) brief {
	b := brief{Phase: status.Phase, IP: status.PodIP}
	for _, c := range status.Conditions {
		if c.Type == corev1.PodReady {
			b.Ready = c.Status == corev1.ConditionTrue
		}
	}
	c := status.ContainerStatuses[0]
	b.Restarts = c.RestartCount
	switch {
	case c.State.Running != nil:
		b.State = "running"
	case c.State.Waiting != nil:
		b.State = c.State.Waiting.Reason
	case c.State.Terminated != nil:
		b.State = c.State.Terminated.Reason
	}
	if c.LastTerminationState.Terminated != nil {
		b.Last = c.LastTerminationState.Terminated.ExitCode
	}
	return b
}

func TestStatusOf(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		act     Act
		policy  corev1.RestartPolicy
		deleted bool
		want    brief
	}{
		"runs":            {Act{}, corev1.RestartPolicyAlways, false, brief{corev1.PodRunning, true, "running", 0, 0, "10.0.0.1"}},
		"not ready":       {Act{Unready: true}, corev1.RestartPolicyAlways, false, brief{corev1.PodRunning, false, "running", 0, 0, "10.0.0.1"}},
		"not started":     {Act{Waiting: "ErrImagePull"}, corev1.RestartPolicyAlways, false, brief{corev1.PodPending, false, "ErrImagePull", 0, 0, ""}},
		"succeeds":        {Act{Exit: new(int32(0))}, corev1.RestartPolicyOnFailure, false, brief{corev1.PodSucceeded, false, "Completed", 0, 0, "10.0.0.1"}},
		"fails":           {Act{Exit: new(int32(3))}, corev1.RestartPolicyNever, false, brief{corev1.PodFailed, false, "Error", 0, 0, "10.0.0.1"}},
		"out of memory":   {Act{Exit: new(int32(137)), Reason: "OOMKilled"}, corev1.RestartPolicyNever, false, brief{corev1.PodFailed, false, "OOMKilled", 0, 0, "10.0.0.1"}},
		"starts again":    {Act{Exit: new(int32(3))}, corev1.RestartPolicyOnFailure, false, brief{corev1.PodRunning, false, "CrashLoopBackOff", 3, 1, "10.0.0.1"}},
		"started again":   {Act{Restarts: 2}, corev1.RestartPolicyAlways, false, brief{corev1.PodRunning, true, "running", 0, 2, "10.0.0.1"}},
		"server is ended": {Act{Exit: new(int32(143))}, corev1.RestartPolicyAlways, true, brief{corev1.PodFailed, false, "Error", 0, 0, "10.0.0.1"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: test.policy, Containers: []corev1.Container{{Name: "c"}}}}
			if test.deleted {
				pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			}
			pod.Status = statusOf(pod, test.act, "127.1.1.1", "10.0.0.1", metav1.Unix(100, 0))
			if diff := cmp.Diff(test.want, briefOf(pod.Status)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			later := statusOf(pod, test.act, "127.1.1.1", "10.0.0.1", metav1.Unix(200, 0))
			if diff := cmp.Diff(pod.Status, later); diff != "" {
				t.Errorf("the same act changes the status (-first +second)\n%s", diff)
			}
		})
	}
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	for n, want := range []string{"", "c\n", "b\nc\n", "a\nb\nc\n", "a\nb\nc\n"} {
		if got := lastLines("a\nb\nc\n", n); got != want {
			t.Errorf("the last %d lines are %q, want %q", n, got, want)
		}
	}
}
