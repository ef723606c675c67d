// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// trouble is why a pod does not run: a CamelCase reason for a condition, and a message for people.
type trouble struct{ reason, message string }

// stuck lists the reasons of waiting containers that need somebody's intervention.
var stuck = []string{
	"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError",
	"CrashLoopBackOff", "RunContainerError",
}

// troubleOf returns what prevents the pods from running, for the first such pod by name; nil if they only need time.
func troubleOf(pods []*corev1.Pod) *trouble {
	for _, pod := range byName(pods) {
		if t := podTrouble(pod); t != nil {
			return t
		}
	}
	return nil
}

func podTrouble(pod *corev1.Pod) *trouble {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	if pod.Status.Phase == corev1.PodFailed {
		return &trouble{cmp.Or(word(pod.Status.Reason), "PodFailed"), fmt.Sprintf("pod %s failed: %s", pod.Name, cmp.Or(pod.Status.Message, pod.Status.Reason))}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return &trouble{c.Reason, fmt.Sprintf("pod %s can't be scheduled: %s", pod.Name, c.Message)}
		}
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if t := containerTrouble(pod.Name, &c); t != nil {
			return t
		}
	}
	return nil
}

// containerTrouble prefers an out-of-memory kill to the back-off that follows it, since the kill is the cause.
func containerTrouble(pod string, c *corev1.ContainerStatus) *trouble {
	if c.Ready {
		return nil
	}
	for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
		if end != nil && end.Reason == "OOMKilled" {
			return &trouble{end.Reason, fmt.Sprintf("pod %s was killed at its memory limit, restarts so far: %d; raise the memory, or cache fewer columns or rows", pod, c.RestartCount)}
		}
	}
	waiting := c.State.Waiting
	if waiting == nil || !slices.Contains(stuck, waiting.Reason) {
		return nil
	}
	message := fmt.Sprintf("pod %s: %s", pod, cmp.Or(waiting.Message, waiting.Reason))
	if end := c.LastTerminationState.Terminated; end != nil {
		message += fmt.Sprintf("; it ended with exit code %d (%s) before", end.ExitCode, end.Reason)
	}
	return &trouble{waiting.Reason, message}
}

// word returns the text if it can be a condition's reason, else "".
func word(text string) string {
	for i, r := range text {
		letter := r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return ""
		}
	}
	return text
}

// runningHeads returns the heads that can be queried, by name.
func runningHeads(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(byName(pods), func(pod *corev1.Pod) bool {
		return pod.Labels[wellknown.LabelRole] != wellknown.RoleHead || pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil
	})
}

// lacksSecret reports whether a pod can't start because the Secret does not exist.
func lacksSecret(pods []*corev1.Pod, name string) bool {
	missing := fmt.Sprintf("secret %q not found", name) // k8s.io/kubernetes pkg/kubelet/kubelet_pods.go, which quotes the API server's message
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Waiting != nil && strings.Contains(c.State.Waiting.Message, missing)
		})
	})
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func runningOf(pods []*corev1.Pod) int {
	n := 0
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// wantedPods is the number of pods that a LeaderWorkerSet should have.
func wantedPods(set *lws.LeaderWorkerSet) int32 {
	return *set.Spec.Replicas * *set.Spec.LeaderWorkerTemplate.Size
}

func byName(pods []*corev1.Pod) []*corev1.Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
}
