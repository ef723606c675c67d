// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/view"
)

// Answer is the result of querying a head; Status is nil if it did not answer.
type Answer struct {
	Pod    *corev1.Pod
	Status *view.HeadStatus
	Err    error
}

// order ranks the states of copies, worst first.
var order = []v1alpha1.State{
	v1alpha1.StateFailed, v1alpha1.StatePending, v1alpha1.StatePlanning, v1alpha1.StateLoading, v1alpha1.StateDegraded, v1alpha1.StateReady,
}

// Combine derives a single condition from the answers of the heads of all copies and from the pods: that of the worst copy. why is
// what prevents pods from running, nil if nothing does.
func Combine(out *engine.Observation, set *lws.LeaderWorkerSet, pods []*corev1.Pod, answers []Answer, why *podstate.Trouble) {
	if !slices.ContainsFunc(answers, func(a Answer) bool { return a.Status != nil }) {
		out.Condition, out.Silent = conditionOfPods(set, pods, answers, why), len(answers) > 0
		return
	}
	out.Answers = true
	var worst *Answer
	for i := range answers {
		a := &answers[i]
		if a.Status == nil {
			continue
		}
		out.Readers = append(out.Readers, a.Status.Readers...)
		if worst == nil || rank(a) < rank(worst) {
			worst = a
		}
	}
	out.Condition, out.Progress = conditionOfHead(worst.Status), progressOf(worst.Status)
	if copies := int(*set.Spec.Replicas); copies > 1 {
		combineCopies(out, copies, worst.Pod.Name, answers)
	}
	addTrouble(&out.Condition, why)
}

func rank(a *Answer) int { return slices.Index(order, conditionOfHead(a.Status).State) }

// combineCopies takes into account copies whose head does not run or answer: a cache with several copies is Ready only when all of
// them are.
func combineCopies(out *engine.Observation, copies int, worst string, answers []Answer) {
	answering := 0
	for _, a := range answers {
		if a.Status != nil {
			answering++
		}
	}
	c := &out.Condition
	switch {
	case answering < copies && c.State != v1alpha1.StateFailed:
		*c = engine.Condition{State: v1alpha1.StatePending, Reason: engine.ReasonStarting, Message: fmt.Sprintf("the heads of %d of %d copies answer; %s", answering, copies, c.Message)}
	case c.State != v1alpha1.StateReady:
		c.Message = fmt.Sprintf("copy %s: %s", worst, c.Message)
	}
}

// conditionOfHead converts a head's status to a condition; both use the same states.
func conditionOfHead(h *view.HeadStatus) engine.Condition {
	switch state := v1alpha1.State(h.State); state {
	case v1alpha1.StatePlanning:
		return engine.Condition{State: state, Reason: engine.ReasonPlanning, Message: h.Reason}
	case v1alpha1.StateLoading:
		return engine.Condition{State: state, Reason: engine.ReasonLoading, Message: h.Reason}
	case v1alpha1.StateReady:
		return engine.Condition{State: state, Reason: engine.ReasonLoaded, Message: loadedOf(h)}
	case v1alpha1.StateDegraded:
		return engine.Condition{State: state, Reason: engine.ReasonReloading, Message: h.Reason}
	case v1alpha1.StateFailed:
		return engine.Condition{State: state, Reason: engine.ReasonFailed, Message: h.Reason}
	}
	return engine.Condition{State: v1alpha1.StatePending, Reason: engine.ReasonUnreachable, Message: fmt.Sprintf("the head says it is %q, which this controller doesn't know: do their versions fit?", h.State)}
}

// loadedOf says what a head that is ready has, which may be a table without rows.
func loadedOf(h *view.HeadStatus) string {
	place := "in memory"
	if slices.ContainsFunc(h.Nodes, func(n view.NodeStatus) bool { return n.Spill != nil }) {
		place = "on the data nodes' disks, and in memory as far as they fit"
	}
	return fmt.Sprintf("all %d rows are %s", h.Rows, place)
}

func progressOf(h *view.HeadStatus) *engine.Progress {
	p := &engine.Progress{Rows: h.Rows, Bytes: h.Bytes, Percent: h.Percent()}
	for _, d := range h.Datasets {
		p.Datasets = append(p.Datasets, d.Dataset)
	}
	if h.Snapshot != 0 || h.Splits.Total > 0 { // the first version of a Delta table is number 0
		p.Snapshot = workload.Decimal(h.Snapshot)
	}
	return p
}

// addTrouble appends the reason why a pod does not start to the condition of a head that waits for the pod.
func addTrouble(c *engine.Condition, why *podstate.Trouble) {
	if why == nil || c.State == v1alpha1.StateReady || c.State == v1alpha1.StateFailed {
		return
	}
	c.Reason, c.Message = why.Reason, c.Message+"; "+why.Message
}

// conditionOfPods derives the condition from the pods when no head answers. The pods' readiness comes from /ready of the head: heads
// that the kubelet can reach and this process can't are still Ready. Without the probe (workload.readiness) it tells nothing.
func conditionOfPods(set *lws.LeaderWorkerSet, pods []*corev1.Pod, answers []Answer, why *podstate.Trouble) engine.Condition {
	ready := 0
	probed := slices.ContainsFunc(set.Spec.LeaderWorkerTemplate.LeaderTemplate.Spec.Containers, func(c corev1.Container) bool { return c.ReadinessProbe != nil })
	for _, a := range answers {
		if probed && podstate.IsReady(a.Pod) {
			ready++
		}
	}
	if ready > 0 && ready == int(*set.Spec.Replicas) {
		return engine.Condition{State: v1alpha1.StateReady, Reason: engine.ReasonLoaded, Message: fmt.Sprintf("head %s is ready, but tells no progress: %v", answers[0].Pod.Name, answers[0].Err)}
	}
	c := engine.Condition{State: v1alpha1.StatePending, Reason: engine.ReasonStarting, Message: fmt.Sprintf("%d of %d pods run", podstate.RunningOf(pods), podstate.WantedPods(set))}
	if len(answers) > 0 {
		c.Reason, c.Message = engine.ReasonUnreachable, answers[0].Err.Error()
	}
	if why != nil {
		c.Reason, c.Message = why.Reason, why.Message
	}
	return c
}
