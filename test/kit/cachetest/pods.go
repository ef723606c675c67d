// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cachetest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// Noon is when the objects of tests were created.
var Noon = metav1.NewTime(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))

// PodChange changes a pod that Pod makes.
type PodChange func(*corev1.Pod)

// Pod returns a pod of the cache of Minimal that runs.
func Pod(role, name string, changes ...PodChange) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team-a", Labels: map[string]string{wellknown.LabelCache: "reviews", wellknown.LabelRole: role}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// InPhase sets the phase.
func InPhase(p corev1.PodPhase) PodChange { return func(pod *corev1.Pod) { pod.Status.Phase = p } }

// Ready makes the pod ready.
func Ready(pod *corev1.Pod) {
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
}

// Leaving begins the pod's deletion.
func Leaving(pod *corev1.Pod) { pod.DeletionTimestamp = &Noon }

// Unschedulable makes the pod wait for a machine.
func Unschedulable(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes have enough memory",
	})
}

// Waiting makes the pod's container wait for a reason.
func Waiting(reason, message string) PodChange {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: wellknown.RoleNode, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}
	}
}

// EndedBefore says how the container ended before it was restarted; it comes after Waiting.
func EndedBefore(reason string, code, restarts int32) PodChange {
	return func(pod *corev1.Pod) {
		c := &pod.Status.ContainerStatuses[0]
		c.RestartCount = restarts
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code}
	}
}
