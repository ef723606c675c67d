// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/internal/wellknown"
)

func TestTroubleOf(t *testing.T) {
	t.Parallel()
	node := func(changes ...podChange) *corev1.Pod { return cachePod(wellknown.RoleNode, "n-1", changes...) }
	evicted := func(pod *corev1.Pod) {
		pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "The node was low on memory"
	}
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		want *trouble
	}{
		"no pods":        {nil, nil},
		"running":        {[]*corev1.Pod{node()}, nil},
		"only starting":  {[]*corev1.Pod{node(waiting("ContainerCreating", ""))}, nil},
		"leaving anyway": {[]*corev1.Pod{node(unschedulable, leaving)}, nil},
		"no room":        {[]*corev1.Pod{node(unschedulable)}, &trouble{"Unschedulable", "pod n-1 can't be scheduled: 0/3 nodes have enough memory"}},
		"no image":       {[]*corev1.Pod{node(waiting("ErrImagePull", "denied"))}, &trouble{"ErrImagePull", "pod n-1: denied"}},
		"no Secret":      {[]*corev1.Pod{node(waiting("CreateContainerConfigError", `secret "s3-keys" not found`))}, &trouble{"CreateContainerConfigError", `pod n-1: secret "s3-keys" not found`}},
		"evicted":        {[]*corev1.Pod{node(evicted)}, &trouble{"Evicted", "pod n-1 failed: The node was low on memory"}},
		"crashes":        {[]*corev1.Pod{node(waiting("CrashLoopBackOff", "back-off 5m0s"), endedBefore("Error", 1, 4))}, &trouble{"CrashLoopBackOff", "pod n-1: back-off 5m0s; it ended with exit code 1 (Error) before"}},
		"too little memory": {
			[]*corev1.Pod{node(waiting("CrashLoopBackOff", "back-off"), endedBefore("OOMKilled", 137, 3))},
			&trouble{"OOMKilled", "pod n-1 was killed at its memory limit, restarts so far: 3; raise the memory, or cache fewer columns or rows"},
		},
		"first by name": {
			[]*corev1.Pod{cachePod(wellknown.RoleNode, "b", unschedulable), cachePod(wellknown.RoleNode, "a", waiting("ErrImagePull", "denied"))},
			&trouble{"ErrImagePull", "pod a: denied"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, troubleOf(c.pods), cmp.AllowUnexported(trouble{})); diff != "" {
				t.Errorf("trouble differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRunningHeads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		want []string
	}{
		"none":             {nil, nil},
		"data nodes alone": {[]*corev1.Pod{cachePod(wellknown.RoleNode, "c-0-1", ready)}, nil},
		"not yet":          {[]*corev1.Pod{cachePod(wellknown.RoleHead, "c-0", inPhase(corev1.PodPending))}, nil},
		"leaving":          {[]*corev1.Pod{cachePod(wellknown.RoleHead, "c-0", ready, leaving)}, nil},
		"ready or not":     {[]*corev1.Pod{cachePod(wellknown.RoleHead, "c-1", ready), cachePod(wellknown.RoleNode, "c-0-1"), cachePod(wellknown.RoleHead, "c-0")}, []string{"c-0", "c-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, pod := range runningHeads(c.pods) {
				got = append(got, pod.Name)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("heads differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLacksSecret(t *testing.T) {
	t.Parallel()
	deleted := cachePod(wellknown.RoleNode, "c-0-1", waiting("CreateContainerConfigError", `secret "reviews-cache-0a1b2c3d" not found`))
	users := cachePod(wellknown.RoleNode, "c-0-1", waiting("CreateContainerConfigError", `secret "s3-keys" not found`))
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		want bool
	}{
		"runs":               {[]*corev1.Pod{cachePod(wellknown.RoleNode, "c-0-1", ready)}, false},
		"its key is deleted": {[]*corev1.Pod{cachePod(wellknown.RoleHead, "c-0"), deleted}, true},
		"a user's keys are":  {[]*corev1.Pod{users}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := lacksSecret(c.pods, secretName(minimal())); got != c.want {
				t.Errorf("lacksSecret = %v, want %v", got, c.want)
			}
		})
	}
}
