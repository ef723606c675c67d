// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
)

const (
	obstaclePause = 10 * time.Second // informers don't contain objects that are not ours
	steadyPause   = 30 * time.Second
	longestPause  = 10 * time.Second
	startingPause = 3 * time.Second // no event occurs when a StatefulSet can't create a pod

	// answerGrace is how long a cache is kept after its TrainJob failed if its head is running and does not answer: it may know the
	// reason.
	answerGrace = 30 * time.Second
)

// maxUsedBy is the maximum length of status.usedBy.
const maxUsedBy = 100

// facts is what a reconciliation knows about a cache.
type facts struct {
	engine.Observation

	now   metav1.Time
	plan  plan
	owner owner
	users []string // as <namespace>/<name>, sorted
	// obstacle prevents the cache's objects from being applied until somebody removes it.
	obstacle *podstate.Trouble
	// reading is whether the cache's users read it; nil: unknown.
	reading *reading
}

// statusOf returns the status that follows from the previous one and the facts. It modifies neither. observedGeneration is not
// advanced while an obstacle prevents the spec from being applied.
func statusOf(dc *v1alpha1.DataCache, f facts) v1alpha1.DataCacheStatus {
	out := *dc.Status.DeepCopy()
	if f.obstacle == nil {
		out.ObservedGeneration = dc.Generation
	}
	out.Endpoint, out.ClaimName, out.Selector = f.Endpoint, f.ClaimName, f.Selector
	out.Replicas, out.ReadyReplicas = 0, 0
	if f.plan.run {
		out.Replicas, out.ReadyReplicas = f.Replicas, f.ReadyReplicas
	}
	recordUsers(&out, f)

	c := judge(&dc.Status, f)
	recordFailure(&out, dc, c, f.now)
	recordProgress(&out, c.State, f)
	recordTimes(&out, c.State, f)
	out.State = c.State
	setConditions(&out, c, dc.Generation, f.now)
	setReading(&out, f.reading, dc.Generation, f.now)
	setAccess(&out, f.Access, dc.Generation, f.now)
	return out
}

// mayExplain reports whether a cache that is about to be released must be observed first. It may have failed since it was last
// observed, and its TrainJob because of that, since the waiting step polls more often than we do. Once the pods are gone the reason
// can't be determined.
func mayExplain(dc *v1alpha1.DataCache, p plan) bool {
	switch dc.Status.State {
	case v1alpha1.StatePending, v1alpha1.StatePlanning, v1alpha1.StateLoading, v1alpha1.StateDegraded:
		return !p.run
	}
	return false
}

// judge derives the condition from the most decisive fact: first whether pods should exist at all, then what prevents the objects
// from being applied, then the pods' condition.
func judge(before *v1alpha1.DataCacheStatus, f facts) engine.Condition {
	served := before.State == v1alpha1.StateReady || before.State == v1alpha1.StateDegraded
	switch {
	case !f.plan.run && f.Answers && f.Condition.State == v1alpha1.StateFailed:
		return f.Condition
	case !f.plan.run && before.State == v1alpha1.StateFailed, f.plan.hold:
		return engine.Condition{State: v1alpha1.StateFailed, Reason: engine.ReasonFailed, Message: failure(before)}
	case !f.plan.run:
		return engine.Condition{State: v1alpha1.StateReleased, Reason: engine.ReasonReleased, Message: f.plan.why}
	case f.plan.restart && before.State == v1alpha1.StateFailed:
		return engine.Condition{State: v1alpha1.StatePending, Reason: engine.ReasonStarting, Message: "it is tried again; it failed before: " + failure(before)}
	case f.obstacle != nil:
		return withObstacle(f)
	case f.Leaving:
		c := engine.Condition{State: v1alpha1.StatePending, Reason: engine.ReasonStarting, Message: "the pods of an earlier run still go"}
		if before.LastFailure != nil { // they may go for long, if a job's pods wait for what failed
			c.Message += "; it failed before: " + before.LastFailure.Message
		}
		return c
	case !f.Exists:
		return engine.Condition{State: v1alpha1.StatePending, Reason: engine.ReasonStarting, Message: "its pods are asked for"}
	case served && (f.Condition.State == v1alpha1.StatePending || f.Replicas > 1 && f.Condition.State != v1alpha1.StateReady && f.Condition.State != v1alpha1.StateFailed):
		return engine.Condition{State: v1alpha1.StateDegraded, Reason: f.Condition.Reason, Message: f.Condition.Message}
	}
	return f.Condition
}

// withObstacle returns the condition of a cache with an obstacle, which is never Ready: it may be serving clients that should not
// have access, or nothing would restore it if it were lost.
func withObstacle(f facts) engine.Condition {
	c := engine.Condition{State: v1alpha1.StatePending, Reason: f.obstacle.Reason, Message: f.obstacle.Message + "; it is tried again every " + obstaclePause.String()}
	switch f.Condition.State {
	case v1alpha1.StateFailed:
		return f.Condition
	case v1alpha1.StateReady, v1alpha1.StateDegraded:
		c.State = v1alpha1.StateDegraded
	}
	return c
}

// failure returns the recorded reason of a cache's failure.
func failure(before *v1alpha1.DataCacheStatus) string {
	if c := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Message
	}
	return "the cache failed"
}

// recordFailure keeps the last failure until the cache is Ready, even during retries.
func recordFailure(out *v1alpha1.DataCacheStatus, dc *v1alpha1.DataCache, c engine.Condition, now metav1.Time) {
	switch {
	case c.State == v1alpha1.StateReady:
		out.LastFailure = nil
	case c.State == v1alpha1.StateFailed && dc.Status.State != v1alpha1.StateFailed:
		last := &v1alpha1.Failure{Time: now, Message: cut(c.Message), Count: 1, Retry: dc.Annotations[kube.AnnotationRetry]}
		if before := dc.Status.LastFailure; before != nil {
			last.Count += before.Count
		}
		out.LastFailure = last
	}
}

func recordUsers(out *v1alpha1.DataCacheStatus, f facts) {
	count := int32(len(f.users)) // bounded by the number of TrainJobs in a cluster
	first := f.users[:min(len(f.users), maxUsedBy)]
	if out.Users == count && slices.Equal(out.UsedBy, first) {
		return
	}
	out.Users, out.UsedBy, out.LastUsedTime = count, slices.Clone(first), new(f.now)
}

// recordTimes records when the pods of this run were created and when all rows were first in memory.
func recordTimes(out *v1alpha1.DataCacheStatus, state v1alpha1.State, f facts) {
	if !f.plan.run {
		out.ProvisionedTime, out.ReadyTime = nil, nil
		return
	}
	if !f.Exists || f.Leaving {
		return
	}
	if asked := f.Created; out.ProvisionedTime == nil || !out.ProvisionedTime.Equal(&asked) {
		out.ProvisionedTime, out.ReadyTime = &asked, nil
	}
	if state == v1alpha1.StateReady && out.ReadyTime == nil {
		out.ReadyTime = new(f.now)
	}
}

// recordProgress keeps the last known numbers while the cache does not answer, and clears them when its memory is freed. When a load
// fails before the cache was ever ready, the snapshot is cleared too: its files may be gone, and nobody has read its rows.
func recordProgress(out *v1alpha1.DataCacheStatus, state v1alpha1.State, f facts) {
	switch {
	case state == v1alpha1.StateReleased || state == v1alpha1.StateFailed:
		out.Rows, out.Bytes, out.LoadedPercent, out.Datasets = nil, nil, nil, nil
		if state == v1alpha1.StateFailed && f.Answers && out.ReadyTime == nil {
			out.Snapshot = ""
		}
	case f.Percent != nil:
		out.LoadedPercent = f.Percent
	case f.Progress == nil || state == v1alpha1.StatePlanning || state == v1alpha1.StatePending:
	default:
		if out.Snapshot == "" {
			out.Snapshot = f.Progress.Snapshot
		}
		out.Rows, out.Bytes, out.LoadedPercent = new(f.Progress.Rows), new(f.Progress.Bytes), new(f.Progress.Percent)
		out.Datasets = f.Progress.Datasets
	}
}

// setConditions sets each condition with its own reason: Ready that of the state, Progressing what is under way or how it ended,
// Degraded which rows are missing.
func setConditions(out *v1alpha1.DataCacheStatus, c engine.Condition, generation int64, now metav1.Time) {
	set := func(kind string, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status, reason, message = metav1.ConditionTrue, c.Reason, c.Message
		}
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: cut(message), ObservedGeneration: generation, LastTransitionTime: now,
		})
	}
	set(v1alpha1.ConditionReady, c.State == v1alpha1.StateReady, c.Reason, c.Message)
	switch c.State {
	case v1alpha1.StateReady:
		set(v1alpha1.ConditionProgressing, false, engine.ReasonLoadComplete, "nothing is to be loaded")
		set(v1alpha1.ConditionDegraded, false, engine.ReasonAllNodesServe, "every data node serves its rows")
	case v1alpha1.StateDegraded:
		set(v1alpha1.ConditionProgressing, false, engine.ReasonLoadComplete, "the first load is complete; Degraded says what is loaded again")
		set(v1alpha1.ConditionDegraded, true, "", "")
	case v1alpha1.StateFailed, v1alpha1.StateReleased:
		set(v1alpha1.ConditionProgressing, false, engine.ReasonStopped, "nothing is being loaded; Ready says why")
		set(v1alpha1.ConditionDegraded, false, engine.ReasonNotLoaded, "no rows are served")
	default:
		set(v1alpha1.ConditionProgressing, true, "", "")
		set(v1alpha1.ConditionDegraded, false, engine.ReasonNotLoaded, "no rows are served yet")
	}
}

// setAccess sets the conditions of who may read the cache; nil leaves them as they are.
func setAccess(out *v1alpha1.DataCacheStatus, access []metav1.Condition, generation int64, now metav1.Time) {
	if access == nil {
		return
	}
	for _, kind := range []string{v1alpha1.ConditionReadersKnown, v1alpha1.ConditionTokensUnverifiable} {
		if !slices.ContainsFunc(access, func(c metav1.Condition) bool { return c.Type == kind }) {
			meta.RemoveStatusCondition(&out.Conditions, kind)
		}
	}
	for _, c := range access {
		c.Message, c.ObservedGeneration, c.LastTransitionTime = cut(c.Message), generation, now
		meta.SetStatusCondition(&out.Conditions, c)
	}
}

// maxMessage is below the maximum length of a condition's message (32768) and of an event's (1024).
const maxMessage = 1000

func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return message[:maxMessage] + " ..."
}

// requeueAfter is when to reconcile a cache without an event: soon after it starts and while it loads, where 1 s to 10 s bound the
// number of requests for many large caches; rarely when it is stable; 0 for never.
func requeueAfter(status *v1alpha1.DataCacheStatus, f facts) time.Duration {
	pause := steadyPause
	switch {
	case f.obstacle != nil:
		return obstaclePause
	case f.Again:
		return kube.ConflictPause
	case !f.plan.run:
		return f.plan.after
	case status.State == v1alpha1.StateReady || status.State == v1alpha1.StateFailed:
	case status.ProvisionedTime == nil, f.AwaitsEvent:
		pause = longestPause
	default:
		pause = min(max(f.now.Sub(status.ProvisionedTime.Time)/10, time.Second), longestPause)
		if f.Condition.Reason == engine.ReasonStarting {
			pause = min(pause, startingPause)
		}
	}
	if f.plan.after > 0 {
		pause = min(pause, f.plan.after)
	}
	return pause
}
