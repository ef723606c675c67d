// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

func TestTroubleOf(t *testing.T) {
	t.Parallel()
	node := func(changes ...cachetest.PodChange) *corev1.Pod {
		return cachetest.Pod(wellknown.RoleNode, "n-1", changes...)
	}
	evicted := func(pod *corev1.Pod) {
		pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "The node was low on memory"
	}
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		want *Trouble
	}{
		"no pods":        {nil, nil},
		"running":        {[]*corev1.Pod{node()}, nil},
		"only starting":  {[]*corev1.Pod{node(cachetest.Waiting("ContainerCreating", ""))}, nil},
		"leaving anyway": {[]*corev1.Pod{node(cachetest.Unschedulable, cachetest.Leaving)}, nil},
		"no room":        {[]*corev1.Pod{node(cachetest.Unschedulable)}, &Trouble{Reason: "Unschedulable", Message: "pod n-1 can't be scheduled: 0/3 nodes have enough memory"}},
		"no image":       {[]*corev1.Pod{node(cachetest.Waiting("ErrImagePull", "denied"))}, &Trouble{Reason: "ErrImagePull", Message: "pod n-1: denied"}},
		"no Secret":      {[]*corev1.Pod{node(cachetest.Waiting("CreateContainerConfigError", `secret "s3-keys" not found`))}, &Trouble{Reason: "CreateContainerConfigError", Message: `pod n-1: secret "s3-keys" not found`}},
		"evicted":        {[]*corev1.Pod{node(evicted)}, &Trouble{Reason: "Evicted", Message: "pod n-1 failed: The node was low on memory"}},
		"crashes":        {[]*corev1.Pod{node(cachetest.Waiting("CrashLoopBackOff", "back-off 5m0s"), cachetest.EndedBefore("Error", 1, 4))}, &Trouble{Reason: "CrashLoopBackOff", Message: "pod n-1: back-off 5m0s; it ended with exit code 1 (Error) before"}},
		"too little memory": {
			[]*corev1.Pod{node(cachetest.Waiting("CrashLoopBackOff", "back-off"), cachetest.EndedBefore("OOMKilled", 137, 3))},
			&Trouble{Reason: "OOMKilled", Message: "pod n-1 was killed at its memory limit, restarts so far: 3; raise the memory, or cache fewer columns or rows"},
		},
		"first by name": {
			[]*corev1.Pod{cachetest.Pod(wellknown.RoleNode, "b", cachetest.Unschedulable), cachetest.Pod(wellknown.RoleNode, "a", cachetest.Waiting("ErrImagePull", "denied"))},
			&Trouble{Reason: "ErrImagePull", Message: "pod a: denied"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, TroubleOf(c.pods), cmp.AllowUnexported(Trouble{})); diff != "" {
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
		"data nodes alone": {[]*corev1.Pod{cachetest.Pod(wellknown.RoleNode, "c-0-1", cachetest.Ready)}, nil},
		"not yet":          {[]*corev1.Pod{cachetest.Pod(wellknown.RoleHead, "c-0", cachetest.InPhase(corev1.PodPending))}, nil},
		"leaving":          {[]*corev1.Pod{cachetest.Pod(wellknown.RoleHead, "c-0", cachetest.Ready, cachetest.Leaving)}, nil},
		"ready or not":     {[]*corev1.Pod{cachetest.Pod(wellknown.RoleHead, "c-1", cachetest.Ready), cachetest.Pod(wellknown.RoleNode, "c-0-1"), cachetest.Pod(wellknown.RoleHead, "c-0")}, []string{"c-0", "c-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, pod := range RunningHeads(c.pods) {
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
	deleted := cachetest.Pod(wellknown.RoleNode, "c-0-1", cachetest.Waiting("CreateContainerConfigError", `secret "reviews-cache-0a1b2c3d-01020304" not found`))
	users := cachetest.Pod(wellknown.RoleNode, "c-0-1", cachetest.Waiting("CreateContainerConfigError", `secret "s3-keys" not found`))
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		want bool
	}{
		"runs":               {[]*corev1.Pod{cachetest.Pod(wellknown.RoleNode, "c-0-1", cachetest.Ready)}, false},
		"its key is deleted": {[]*corev1.Pod{cachetest.Pod(wellknown.RoleHead, "c-0"), deleted}, true},
		"a user's keys are":  {[]*corev1.Pod{users}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := LacksSecret(c.pods, "reviews-cache-0a1b2c3d-01020304"); got != c.want {
				t.Errorf("lacksSecret = %v, want %v", got, c.want)
			}
		})
	}
}
