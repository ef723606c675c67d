// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podstate finds out which pods run, and what keeps others from it, from their status and the events about them.
package podstate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// Trouble is why a pod does not run: a CamelCase reason for a condition, and a message for people.
type Trouble struct{ Reason, Message string }

// stuck lists the reasons of waiting containers that need somebody's intervention.
var stuck = []string{
	"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError",
	"CrashLoopBackOff", "RunContainerError",
}

// TroubleOf returns what prevents the pods from running, for the first such pod by name; nil if they only need time.
func TroubleOf(pods []*corev1.Pod) *Trouble {
	for _, pod := range ByName(pods) {
		if t := PodTrouble(pod); t != nil {
			return t
		}
	}
	return nil
}

// PodTrouble returns what prevents the pod from running; nil if it runs, needs time, or is being deleted.
func PodTrouble(pod *corev1.Pod) *Trouble {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	if pod.Status.Phase == corev1.PodFailed {
		return &Trouble{cmp.Or(Word(pod.Status.Reason), "PodFailed"), fmt.Sprintf("pod %s failed: %s", pod.Name, cmp.Or(pod.Status.Message, pod.Status.Reason))}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable && !awaitsClaim(pod) {
			return &Trouble{c.Reason, fmt.Sprintf("pod %s can't be scheduled: %s", pod.Name, c.Message)}
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
func containerTrouble(pod string, c *corev1.ContainerStatus) *Trouble {
	if c.Ready {
		return nil
	}
	for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
		if end != nil && end.Reason == "OOMKilled" {
			return &Trouble{end.Reason, fmt.Sprintf("pod %s was killed at its memory limit, restarts so far: %d; raise the memory, or cache fewer columns or rows", pod, c.RestartCount)}
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
	return &Trouble{waiting.Reason, message}
}

// EndOf is what a failed pod's container wrote at its end, on one line, and else how it ended.
func EndOf(pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		if end := pod.Status.ContainerStatuses[i].State.Terminated; end != nil {
			return cmp.Or(strings.Join(strings.Fields(end.Message), " "), fmt.Sprintf("exit code %d (%s)", end.ExitCode, end.Reason))
		}
	}
	return cmp.Or(pod.Status.Message, pod.Status.Reason)
}

// Word returns the text if it can be a condition's reason, else "".
func Word(text string) string {
	for i, r := range text {
		letter := r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return ""
		}
	}
	return text
}

// RunningHeads returns the heads that can be queried, by name.
func RunningHeads(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(ByName(pods), func(pod *corev1.Pod) bool {
		return pod.Labels[wellknown.LabelRole] != wellknown.RoleHead || pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil
	})
}

// LacksSecret reports whether a pod can't start because the Secret does not exist.
func LacksSecret(pods []*corev1.Pod, name string) bool {
	missing := fmt.Sprintf("secret %q not found", name) // k8s.io/kubernetes pkg/kubelet/kubelet_pods.go, which quotes the API server's message
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Waiting != nil && strings.Contains(c.State.Waiting.Message, missing)
		})
	})
}

// IsReady reports whether the pod has the condition Ready.
func IsReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// RunningOf counts the pods that run and are not being deleted.
func RunningOf(pods []*corev1.Pod) int {
	n := 0
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// WantedPods is the number of pods that a LeaderWorkerSet should have.
func WantedPods(set *lws.LeaderWorkerSet) int32 {
	return *set.Spec.Replicas * *set.Spec.LeaderWorkerTemplate.Size
}

// ByName returns the pods, sorted by name.
func ByName(pods []*corev1.Pod) []*corev1.Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
}
