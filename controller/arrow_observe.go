// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/view"
)

// headAnswer is the result of querying a head; status is nil if it did not answer.
type headAnswer struct {
	pod    *corev1.Pod
	status *view.HeadStatus
	err    error
}

// order ranks the states of copies, worst first.
var order = []v1alpha1.State{
	v1alpha1.StateFailed, v1alpha1.StatePending, v1alpha1.StatePlanning, v1alpha1.StateLoading, v1alpha1.StateDegraded, v1alpha1.StateReady,
}

// combine derives a single condition from the answers of the heads of all copies and from the pods: that of the worst copy. why is
// what prevents pods from running, nil if nothing does.
func combine(out *observation, set *lws.LeaderWorkerSet, pods []*corev1.Pod, answers []headAnswer, why *trouble) {
	if !slices.ContainsFunc(answers, func(a headAnswer) bool { return a.status != nil }) {
		out.condition, out.silent = conditionOfPods(set, pods, answers, why), len(answers) > 0
		return
	}
	out.answers = true
	var worst *headAnswer
	for i := range answers {
		a := &answers[i]
		if a.status == nil {
			continue
		}
		out.readers = append(out.readers, a.status.Readers...)
		if worst == nil || rank(a) < rank(worst) {
			worst = a
		}
	}
	out.condition, out.progress = conditionOfHead(worst.status), progressOf(worst.status)
	if copies := int(*set.Spec.Replicas); copies > 1 {
		combineCopies(out, copies, worst.pod.Name, answers)
	}
	addTrouble(&out.condition, why)
}

func rank(a *headAnswer) int { return slices.Index(order, conditionOfHead(a.status).state) }

// combineCopies takes into account copies whose head does not run or answer: a cache with several copies is Ready only when all of
// them are.
func combineCopies(out *observation, copies int, worst string, answers []headAnswer) {
	answering := 0
	for _, a := range answers {
		if a.status != nil {
			answering++
		}
	}
	c := &out.condition
	switch {
	case answering < copies && c.state != v1alpha1.StateFailed:
		*c = condition{v1alpha1.StatePending, reasonStarting, fmt.Sprintf("the heads of %d of %d copies answer; %s", answering, copies, c.message)}
	case c.state != v1alpha1.StateReady:
		c.message = fmt.Sprintf("copy %s: %s", worst, c.message)
	}
}

// conditionOfHead converts a head's status to a condition; both use the same states.
func conditionOfHead(h *view.HeadStatus) condition {
	switch state := v1alpha1.State(h.State); state {
	case v1alpha1.StatePlanning:
		return condition{state, reasonPlanning, h.Reason}
	case v1alpha1.StateLoading:
		return condition{state, reasonLoading, h.Reason}
	case v1alpha1.StateReady:
		return condition{state, reasonLoaded, fmt.Sprintf("all %d rows are in memory", h.Rows)}
	case v1alpha1.StateDegraded:
		return condition{state, reasonReloading, h.Reason}
	case v1alpha1.StateFailed:
		return condition{state, reasonFailed, h.Reason}
	}
	return condition{v1alpha1.StatePending, reasonUnreachable, fmt.Sprintf("the head says it is %q, which this controller doesn't know: do their versions fit?", h.State)}
}

func progressOf(h *view.HeadStatus) *progress {
	p := &progress{rows: h.Rows, bytes: h.Bytes, percent: h.Percent()}
	if h.Snapshot != 0 {
		p.snapshot = decimal(h.Snapshot)
	}
	return p
}

// addTrouble appends the reason why a pod does not start to the condition of a head that waits for the pod.
func addTrouble(c *condition, why *trouble) {
	if why == nil || c.state == v1alpha1.StateReady || c.state == v1alpha1.StateFailed {
		return
	}
	c.reason, c.message = why.reason, c.message+"; "+why.message
}

// conditionOfPods derives the condition from the pods when no head answers. The pods' readiness comes from /ready of the head: heads
// that the kubelet can reach and this process can't are still Ready.
func conditionOfPods(set *lws.LeaderWorkerSet, pods []*corev1.Pod, answers []headAnswer, why *trouble) condition {
	ready := 0
	for _, a := range answers {
		if isReady(a.pod) {
			ready++
		}
	}
	if ready > 0 && ready == int(*set.Spec.Replicas) {
		return condition{v1alpha1.StateReady, reasonLoaded, fmt.Sprintf("head %s is ready, but tells no progress: %v", answers[0].pod.Name, answers[0].err)}
	}
	c := condition{v1alpha1.StatePending, reasonStarting, fmt.Sprintf("%d of %d pods run", runningOf(pods), wantedPods(set))}
	if len(answers) > 0 {
		c.reason, c.message = reasonUnreachable, answers[0].err.Error()
	}
	if why != nil {
		c.reason, c.message = why.reason, why.message
	}
	return c
}
