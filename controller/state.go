// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
)

// Reasons of conditions, beside those of pods that can't start (ImagePullBackOff, Unschedulable, OOMKilled, ...).
const (
	reasonStarting    = "PodsStarting"
	reasonUnreachable = "HeadUnreachable"
	reasonPlanning    = "Planning"
	reasonLoading     = "Loading"
	reasonLoaded      = "Loaded"
	reasonReloading   = "Reloading"
	reasonFailed      = "LoadFailed"
	reasonReleased    = "Released"
	reasonNameTaken   = "NameTaken"
	reasonRefused     = "Refused"

	// Of Progressing and Degraded where they are False.
	reasonLoadComplete  = "LoadComplete"
	reasonStopped       = "Stopped"
	reasonNotLoaded     = "NotLoaded"
	reasonAllNodesServe = "AllNodesServe"
)

const (
	obstaclePause = time.Minute // the informers don't see what is not ours
	standingPause = 30 * time.Second
	longestPause  = 10 * time.Second

	// patience is how long after its TrainJob failed a cache stays for a head that runs and does not answer: it may know why.
	patience = 30 * time.Second
)

// maxUsedBy bounds status.usedBy.
const maxUsedBy = 100

// seen is what a reconciliation found out about a cache. Nil fields were not found.
type seen struct {
	now     metav1.Time
	plan    plan
	failed  time.Time // when the owning job did; zero: it did not
	users   []string  // as <namespace>/<name>, sorted
	set     *lws.LeaderWorkerSet
	pods    []*corev1.Pod
	head    *headStatus
	headErr error
	// obstacle keeps the cache's objects from being made until somebody mends it.
	obstacle *trouble
}

// verdict is a cache's state with the condition's words for it.
type verdict struct {
	state           v1alpha1.State
	reason, message string
}

// observe makes the status that follows from the one before and what was seen. It changes neither.
func observe(dc *v1alpha1.DataCache, s seen) v1alpha1.DataCacheStatus {
	out := *dc.Status.DeepCopy()
	out.ObservedGeneration = dc.Generation
	out.Endpoint = fmt.Sprintf("grpc://%s.%s:%d", inject.ServiceName(dc.Name), dc.Namespace, inject.FlightPort)
	out.Selector = labels.SelectorFromSet(headSelector(dc)).String()
	out.Replicas, out.ReadyReplicas = 0, 0
	if s.set != nil {
		out.Replicas, out.ReadyReplicas = s.set.Status.Replicas, s.set.Status.ReadyReplicas
	}
	recordUsers(&out, s)

	v := judge(&dc.Status, s)
	recordTimes(&out, v.state, s)
	recordProgress(&out, v.state, s.head)
	out.State = v.state
	setConditions(&out, v, dc.Generation, s.now)
	return out
}

// hasLastWord tells whether the head of a cache that is to go must be asked first: it may have failed since it was asked last, and its
// TrainJob of that, for the step that waits asks more often than we do. Once the pods are gone nobody knows why.
func hasLastWord(dc *v1alpha1.DataCache, p plan) bool {
	switch dc.Status.State {
	case v1alpha1.StatePending, v1alpha1.StatePlanning, v1alpha1.StateLoading, v1alpha1.StateDegraded:
		return !p.run
	}
	return false
}

// judge derives the state, the surest source first: whether there are to be pods at all, then the head's own word, then the pods.
func judge(before *v1alpha1.DataCacheStatus, s seen) verdict {
	switch {
	case s.obstacle != nil && s.head == nil:
		return verdict{v1alpha1.StatePending, s.obstacle.reason, s.obstacle.message}
	case !s.plan.run && s.head != nil && s.head.State == string(v1alpha1.StateFailed):
		return fromHead(s.head)
	case !s.plan.run && before.State == v1alpha1.StateFailed:
		return verdict{v1alpha1.StateFailed, reasonFailed, failure(before)}
	case !s.plan.run:
		return verdict{v1alpha1.StateReleased, reasonReleased, s.plan.why}
	case s.head != nil:
		return withTrouble(fromHead(s.head), s.pods)
	case s.set == nil || s.set.DeletionTimestamp != nil:
		return verdict{v1alpha1.StatePending, reasonStarting, "the pods of an earlier run still go"}
	}
	return fromPods(before, s)
}

// fromHead takes the head's word; its states are ours.
func fromHead(h *headStatus) verdict {
	switch state := v1alpha1.State(h.State); state {
	case v1alpha1.StatePlanning:
		return verdict{state, reasonPlanning, h.Reason}
	case v1alpha1.StateLoading:
		return verdict{state, reasonLoading, h.Reason}
	case v1alpha1.StateReady:
		return verdict{state, reasonLoaded, fmt.Sprintf("all %d rows are in memory", h.Rows)}
	case v1alpha1.StateDegraded:
		return verdict{state, reasonReloading, h.Reason}
	case v1alpha1.StateFailed:
		return verdict{state, reasonFailed, h.Reason}
	}
	return verdict{v1alpha1.StatePending, reasonUnreachable, fmt.Sprintf("the head says it is %q, which this controller doesn't know: do their versions fit?", h.State)}
}

// withTrouble adds why a pod does not start to what a head that waits for it says.
func withTrouble(v verdict, pods []*corev1.Pod) verdict {
	if v.state == v1alpha1.StateReady || v.state == v1alpha1.StateFailed {
		return v
	}
	if t := troubleOf(pods); t != nil {
		v.reason, v.message = t.reason, v.message+"; "+t.message
	}
	return v
}

// fromPods is for when no head answers. A pod is ready by /ready, which is the head's word too: a head that the kubelet can reach and
// this process can't is Ready all the same. One that was Ready and is gone is Degraded until it is back.
func fromPods(before *v1alpha1.DataCacheStatus, s seen) verdict {
	leader := leaderOf(s.pods)
	if leader != nil && isReady(leader) {
		return verdict{v1alpha1.StateReady, reasonLoaded, fmt.Sprintf("head %s is ready, but tells no progress: %v", leader.Name, s.headErr)}
	}
	v := verdict{v1alpha1.StatePending, reasonStarting, fmt.Sprintf("%d of %d pods run", runningOf(s.pods), wantedPods(s.set))}
	if leader != nil && s.headErr != nil {
		v.reason, v.message = reasonUnreachable, s.headErr.Error()
	}
	if t := troubleOf(s.pods); t != nil {
		v.reason, v.message = t.reason, t.message
	}
	if before.State == v1alpha1.StateReady || before.State == v1alpha1.StateDegraded {
		v.state = v1alpha1.StateDegraded
	}
	return v
}

// failure is why a cache failed, as it was recorded.
func failure(before *v1alpha1.DataCacheStatus) string {
	if c := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Message
	}
	return "the cache failed"
}

func recordUsers(out *v1alpha1.DataCacheStatus, s seen) {
	count := int32(len(s.users)) // TrainJobs of one cluster
	first := s.users[:min(len(s.users), maxUsedBy)]
	if out.Users == count && slices.Equal(out.UsedBy, first) {
		return
	}
	out.Users, out.UsedBy, out.LastUsedTime = count, slices.Clone(first), new(s.now)
}

// recordTimes keeps when this run's pods were asked for and when all its rows were there first.
func recordTimes(out *v1alpha1.DataCacheStatus, state v1alpha1.State, s seen) {
	if !s.plan.run {
		out.ProvisionedTime, out.ReadyTime = nil, nil
		return
	}
	if s.set == nil || s.set.DeletionTimestamp != nil {
		return
	}
	if asked := s.set.CreationTimestamp; out.ProvisionedTime == nil || !out.ProvisionedTime.Equal(&asked) {
		out.ProvisionedTime, out.ReadyTime = &asked, nil
	}
	if state == v1alpha1.StateReady && out.ReadyTime == nil {
		out.ReadyTime = new(s.now)
	}
}

// recordProgress keeps the last known numbers while the head is silent and forgets them when the memory is freed. A failed load that
// never got ready also forgets its snapshot: its files may be gone, and nobody has seen a row of it.
func recordProgress(out *v1alpha1.DataCacheStatus, state v1alpha1.State, h *headStatus) {
	switch {
	case state == v1alpha1.StateReleased || state == v1alpha1.StateFailed:
		out.Rows, out.Bytes, out.LoadedPercent = nil, nil, nil
		if h != nil && out.ReadyTime == nil {
			out.Snapshot = ""
		}
	case h == nil || state == v1alpha1.StatePlanning || state == v1alpha1.StatePending:
	default:
		if out.Snapshot == "" && h.Snapshot != 0 {
			out.Snapshot = decimal(h.Snapshot)
		}
		out.Rows, out.Bytes, out.LoadedPercent = new(h.Rows), new(h.Bytes), new(h.percent())
	}
}

// setConditions gives each condition its own reason: Ready has the verdict's, Progressing what is under way or how it ended, Degraded what is
// lost.
func setConditions(out *v1alpha1.DataCacheStatus, v verdict, generation int64, now metav1.Time) {
	set := func(kind string, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status, reason, message = metav1.ConditionTrue, v.reason, v.message
		}
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: cut(message), ObservedGeneration: generation, LastTransitionTime: now,
		})
	}
	set(v1alpha1.ConditionReady, v.state == v1alpha1.StateReady, v.reason, v.message)
	switch v.state {
	case v1alpha1.StateReady:
		set(v1alpha1.ConditionProgressing, false, reasonLoadComplete, "nothing is to be loaded")
		set(v1alpha1.ConditionDegraded, false, reasonAllNodesServe, "every data node serves its rows")
	case v1alpha1.StateDegraded:
		set(v1alpha1.ConditionProgressing, false, reasonLoadComplete, "the first load is complete; Degraded says what is loaded again")
		set(v1alpha1.ConditionDegraded, true, "", "")
	case v1alpha1.StateFailed, v1alpha1.StateReleased:
		set(v1alpha1.ConditionProgressing, false, reasonStopped, "nothing is being loaded; Ready says why")
		set(v1alpha1.ConditionDegraded, false, reasonNotLoaded, "no rows are served")
	default:
		set(v1alpha1.ConditionProgressing, true, "", "")
		set(v1alpha1.ConditionDegraded, false, reasonNotLoaded, "no rows are served yet")
	}
}

// cut keeps a message within what a condition may hold (32768) and an event shows (1024).
func cut(message string) string {
	const most = 1000
	if len(message) <= most {
		return message
	}
	return message[:most] + " ..."
}

// askAgain is when to look at a cache again though nothing woke us: often at first and while it loads, for which 1 s to 10 s bound the
// requests of many large caches; rarely when it stands; 0 for never.
func askAgain(status *v1alpha1.DataCacheStatus, s seen) time.Duration {
	switch {
	case s.obstacle != nil:
		return obstaclePause
	case !s.plan.run:
		return 0
	case status.State == v1alpha1.StateReady || status.State == v1alpha1.StateFailed:
		if s.plan.after > 0 {
			return min(s.plan.after, standingPause)
		}
		return standingPause
	case status.ProvisionedTime == nil:
		return longestPause
	}
	return min(max(s.now.Sub(status.ProvisionedTime.Time)/10, time.Second), longestPause)
}
