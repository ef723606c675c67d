// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Act is the simulated state of a pod's containers. The zero value is running and ready. All regular containers have the same state;
// init containers have succeeded, sidecars keep running.
type Act struct {
	Waiting  string // not started, with this reason: "ImagePullBackOff", "CreateContainerConfigError"; "" = started
	Unready  bool   // the readiness probe fails
	Exit     *int32 // they ended with this code: permanently, or to be restarted if the pod's restartPolicy says so (CrashLoopBackOff)
	Reason   string // reason of an Exit: "OOMKilled"; "" = "Completed" or "Error"
	Message  string // of Waiting, or of the Exit of a container that wrote one
	Restarts int32  // number of restarts; an Exit after which the restartPolicy restarts counts as at least one
	Log      string // the log so far
	IP       string // the pod's IP address; "" = one of 10.244.0.0/16 where nothing listens. EndpointSlices reject loopback addresses
	Linger   bool   // while true, a pod that is being deleted doesn't end
}

// Play returns the state of a pod's containers. The kubelet calls it repeatedly, from several goroutines: so a Play may follow the
// test's own state, or a server's. The pod is a copy.
type Play func(pod *corev1.Pod) Act

// Succeed is a Play in which the pods of Jobs exit with 0 and all others are running and ready.
func Succeed(pod *corev1.Pod) Act {
	if _, ofJob := pod.Labels["batch.kubernetes.io/job-name"]; ofJob {
		return Act{Exit: new(int32(0))}
	}
	return Act{}
}

// exitTerminated is the exit code of a program that SIGTERM ended: 128 + 15.
const exitTerminated = 143

// ended reports whether the pod has finished, after which the kubelet never changes its phase again.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// statusOf returns the status that a kubelet would report for a pod whose containers are in the state act. It is derived from the
// pod's status and keeps times, so that the same act yields the same status again.
func statusOf(pod *corev1.Pod, act Act, hostIP, podIP string, now metav1.Time) corev1.PodStatus {
	status := *pod.Status.DeepCopy()
	restarts := act.Restarts
	again := act.Exit != nil && pod.DeletionTimestamp == nil && startsAgain(pod.Spec.RestartPolicy, *act.Exit)
	if again {
		restarts = max(restarts, 1)
	}
	state := containerState(act, again, now)

	status.ObservedGeneration = pod.Generation
	status.Phase = phaseOf(act, again)
	status.HostIP, status.HostIPs = hostIP, []corev1.HostIP{{IP: hostIP}}
	if act.Waiting == "" {
		status.PodIP, status.PodIPs = podIP, []corev1.PodIP{{IP: podIP}}
	}
	if status.StartTime == nil {
		status.StartTime = &now
	}
	status.InitContainerStatuses = nil
	for _, c := range pod.Spec.InitContainers {
		s := containerState(Act{Exit: new(int32(0))}, false, now)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways && status.Phase == corev1.PodRunning {
			s = containerState(Act{}, false, now)
		}
		status.InitContainerStatuses = append(status.InitContainerStatuses,
			containerStatus(pod, c, pod.Status.InitContainerStatuses, s, 0, true))
	}
	ready := state.Running != nil && !act.Unready
	status.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		s := containerStatus(pod, c, pod.Status.ContainerStatuses, state, restarts, ready)
		if again {
			exit := containerState(act, false, now)
			s.LastTerminationState = keepTimes(exit, s.LastTerminationState)
		}
		status.ContainerStatuses = append(status.ContainerStatuses, s)
	}
	setCondition(&status, corev1.PodInitialized, true, now)
	setCondition(&status, corev1.ContainersReady, ready, now)
	setCondition(&status, corev1.PodReady, ready, now)
	return status
}

// startsAgain reports whether a kubelet restarts containers that exited with the code.
func startsAgain(policy corev1.RestartPolicy, code int32) bool {
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && code != 0
}

func phaseOf(act Act, again bool) corev1.PodPhase {
	switch {
	case act.Waiting != "":
		return corev1.PodPending
	case act.Exit == nil || again:
		return corev1.PodRunning
	case *act.Exit == 0:
		return corev1.PodSucceeded
	default:
		return corev1.PodFailed
	}
}

func containerState(act Act, again bool, now metav1.Time) corev1.ContainerState {
	switch {
	case act.Waiting != "":
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: act.Waiting, Message: act.Message}}
	case again:
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	case act.Exit == nil:
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	}
	reason := act.Reason
	if reason == "" && *act.Exit == 0 {
		reason = "Completed"
	} else if reason == "" {
		reason = "Error"
	}
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: *act.Exit, Reason: reason, Message: act.Message, StartedAt: now, FinishedAt: now,
	}}
}

// containerStatus returns the status of one container, with the times of its previous status if the state is unchanged.
func containerStatus(
	pod *corev1.Pod, c corev1.Container, before []corev1.ContainerStatus, state corev1.ContainerState, restarts int32, ready bool,
) corev1.ContainerStatus {
	started := state.Running != nil
	status := corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, ImageID: c.Image, State: state, RestartCount: restarts, Ready: ready, Started: &started,
	}
	if state.Waiting == nil || restarts > 0 {
		status.ContainerID = fmt.Sprintf("kubetest://%s/%s/%d", pod.UID, c.Name, restarts)
	}
	for _, b := range before {
		if b.Name != c.Name {
			continue
		}
		status.LastTerminationState = b.LastTerminationState
		if b.RestartCount == restarts {
			status.State = keepTimes(state, b.State)
		}
	}
	return status
}

// keepTimes returns the state, with the times of the previous state if nothing else differs.
func keepTimes(state, before corev1.ContainerState) corev1.ContainerState {
	switch {
	case state.Running != nil && before.Running != nil:
		return before
	case state.Terminated != nil && before.Terminated != nil &&
		state.Terminated.ExitCode == before.Terminated.ExitCode && state.Terminated.Reason == before.Terminated.Reason:
		return before
	case state.Terminated != nil && before.Running != nil:
		state.Terminated.StartedAt = before.Running.StartedAt
	}
	return state
}

func setCondition(status *corev1.PodStatus, kind corev1.PodConditionType, holds bool, now metav1.Time) {
	want := corev1.ConditionFalse
	if holds {
		want = corev1.ConditionTrue
	}
	for i := range status.Conditions {
		c := &status.Conditions[i]
		if c.Type != kind {
			continue
		}
		if c.Status != want {
			c.Status, c.LastTransitionTime = want, now
		}
		return
	}
	status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: want, LastTransitionTime: now})
}
