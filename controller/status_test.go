// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/arrow"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/heads"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

func after(d time.Duration) metav1.Time { return metav1.NewTime(cachetest.Noon.Add(d)) }

func liveSet() *lws.LeaderWorkerSet {
	set, err := workload.LeaderWorkerSet(cachetest.Minimal(), workload.Server{Image: "image"})
	if err != nil {
		panic(err) // minimal has no template that could fail to merge
	}
	set.CreationTimestamp = cachetest.Noon
	return set
}

func answer(state, reason string, done, total int64) *view.HeadStatus {
	h := &view.HeadStatus{State: state, Reason: reason, Snapshot: 42, Rows: 10 * done, Bytes: done << 30}
	h.Splits.Done, h.Splits.Total = done, total
	return h
}

// answered returns the engine's observation of one head's answer.
func answered(h *view.HeadStatus, pods ...*corev1.Pod) engine.Observation {
	return observedAs(liveSet(), pods, heads.Answer{Pod: cachetest.Pod(wellknown.RoleHead, "reviews-cache-0"), Status: h})
}

func observedAs(set *lws.LeaderWorkerSet, pods []*corev1.Pod, answers ...heads.Answer) engine.Observation {
	o := engine.Observation{Exists: true, Created: set.CreationTimestamp, Replicas: *set.Spec.Replicas}
	heads.Combine(&o, set, pods, answers, podstate.TroubleOf(pods))
	return o
}

// copiesOf returns a LeaderWorkerSet with several copies.
func copiesOf(n int32) *lws.LeaderWorkerSet {
	set := liveSet()
	set.Spec.Replicas = &n
	return set
}

func TestJudge(t *testing.T) {
	t.Parallel()
	head := func(changes ...cachetest.PodChange) *corev1.Pod {
		return cachetest.Pod(wellknown.RoleHead, "reviews-cache-0", changes...)
	}
	node := func(changes ...cachetest.PodChange) *corev1.Pod {
		return cachetest.Pod(wellknown.RoleNode, "reviews-cache-0-1", changes...)
	}
	quiet := func(pods ...*corev1.Pod) engine.Observation {
		var answers []heads.Answer
		for _, pod := range podstate.RunningHeads(pods) {
			answers = append(answers, heads.Answer{Pod: pod, Err: errors.New("connection refused")})
		}
		return observedAs(liveSet(), pods, answers...)
	}
	one, two := heads.Answer{Pod: head(), Status: answer("Ready", "ready", 28, 28)}, heads.Answer{Pod: cachetest.Pod(wellknown.RoleHead, "reviews-cache-1"), Status: answer("Loading", "loading 43%", 12, 28)}
	failed := v1alpha1.DataCacheStatus{State: v1alpha1.StateFailed, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Message: "no such file"}}}
	served := v1alpha1.DataCacheStatus{State: v1alpha1.StateReady}
	run := plan{run: true}
	taken := &podstate.Trouble{Reason: "NameTaken", Message: "taken"}
	for name, c := range map[string]struct {
		before v1alpha1.DataCacheStatus
		facts  facts
		want   engine.Condition
	}{
		"name taken":                 {facts: facts{plan: run, obstacle: taken}, want: engine.Condition{State: v1alpha1.StatePending, Reason: "NameTaken", Message: "taken; it is tried again every 10s"}},
		"name taken while it serves": {facts: facts{plan: run, Observation: answered(answer("Ready", "ready", 1, 1)), obstacle: taken}, want: engine.Condition{State: v1alpha1.StateDegraded, Reason: "NameTaken", Message: "taken; it is tried again every 10s"}},
		"name taken, failed":         {facts: facts{plan: run, Observation: answered(answer("Failed", "no file", 1, 1)), obstacle: taken}, want: engine.Condition{State: v1alpha1.StateFailed, Reason: "LoadFailed", Message: "no file"}},
		"released":                   {facts: facts{plan: plan{why: "idle"}}, want: engine.Condition{State: v1alpha1.StateReleased, Reason: "Released", Message: "idle"}},
		"released after it failed":   {before: failed, facts: facts{plan: plan{why: "idle"}}, want: engine.Condition{State: v1alpha1.StateFailed, Reason: "LoadFailed", Message: "no such file"}},
		"released as it failed":      {facts: facts{plan: plan{why: "TrainJob train is finished"}, Observation: answered(answer("Failed", "access denied", 3, 28))}, want: engine.Condition{State: v1alpha1.StateFailed, Reason: "LoadFailed", Message: "access denied"}},
		"released as it loaded":      {facts: facts{plan: plan{why: "TrainJob train is deleted"}, Observation: answered(answer("Loading", "loading 43%", 12, 28))}, want: engine.Condition{State: v1alpha1.StateReleased, Reason: "Released", Message: "TrainJob train is deleted"}},
		"wanted again after failure": {before: failed, facts: facts{plan: run, Observation: quiet()}, want: engine.Condition{State: v1alpha1.StatePending, Reason: "PodsStarting", Message: "0 of 3 pods run"}},
		"waits for its next try":     {before: failed, facts: facts{plan: plan{run: true, hold: true}}, want: engine.Condition{State: v1alpha1.StateFailed, Reason: "LoadFailed", Message: "no such file"}},
		"is tried again":             {before: failed, facts: facts{plan: plan{run: true, restart: true}, Observation: answered(answer("Failed", "no file", 0, 1))}, want: engine.Condition{State: v1alpha1.StatePending, Reason: "PodsStarting", Message: "it is tried again; it failed before: no such file"}},
		"old pods go, which failed": {
			before: v1alpha1.DataCacheStatus{State: v1alpha1.StatePending, LastFailure: &v1alpha1.Failure{Message: "no image"}},
			facts:  facts{plan: run, Observation: engine.Observation{Exists: true, Leaving: true}},
			want:   engine.Condition{State: v1alpha1.StatePending, Reason: "PodsStarting", Message: "the pods of an earlier run still go; it failed before: no image"},
		},
		"old pods go":   {facts: facts{plan: run, Observation: engine.Observation{Exists: true, Leaving: true}}, want: engine.Condition{State: v1alpha1.StatePending, Reason: "PodsStarting", Message: "the pods of an earlier run still go"}},
		"asked for":     {facts: facts{plan: run}, want: engine.Condition{State: v1alpha1.StatePending, Reason: "PodsStarting", Message: "its pods are asked for"}},
		"some pods run": {facts: facts{plan: run, Observation: quiet(head(cachetest.InPhase(corev1.PodPending)), node())}, want: engine.Condition{State: v1alpha1.StatePending, Reason: "PodsStarting", Message: "1 of 3 pods run"}},
		"image can't be pulled": {
			facts: facts{plan: run, Observation: quiet(head(cachetest.InPhase(corev1.PodPending), cachetest.Waiting("ImagePullBackOff", "no such image")), node())},
			want:  engine.Condition{State: v1alpha1.StatePending, Reason: "ImagePullBackOff", Message: "pod reviews-cache-0: no such image"},
		},
		"head runs but is silent": {facts: facts{plan: run, Observation: quiet(head())}, want: engine.Condition{State: v1alpha1.StatePending, Reason: "HeadUnreachable", Message: "connection refused"}},
		"head is ready but out of the manager's reach": {
			facts: facts{plan: run, Observation: quiet(head(cachetest.Ready))},
			want:  engine.Condition{State: v1alpha1.StateReady, Reason: "Loaded", Message: "head reviews-cache-0 is ready, but tells no progress: connection refused"},
		},
		"planning": {facts: facts{plan: run, Observation: answered(answer("Planning", "planning (1/9 files)", 0, 0))}, want: engine.Condition{State: v1alpha1.StatePlanning, Reason: "Planning", Message: "planning (1/9 files)"}},
		"loading":  {facts: facts{plan: run, Observation: answered(answer("Loading", "loading 43%", 12, 28))}, want: engine.Condition{State: v1alpha1.StateLoading, Reason: "Loading", Message: "loading 43%"}},
		"loading, a node can't be scheduled": {
			facts: facts{plan: run, Observation: answered(answer("Loading", "waiting for data node 0 to join", 0, 28), node(cachetest.Unschedulable))},
			want:  engine.Condition{State: v1alpha1.StateLoading, Reason: "Unschedulable", Message: "waiting for data node 0 to join; pod reviews-cache-0-1 can't be scheduled: 0/3 nodes have enough memory"},
		},
		"ready":            {facts: facts{plan: run, Observation: answered(answer("Ready", "ready", 28, 28))}, want: engine.Condition{State: v1alpha1.StateReady, Reason: "Loaded", Message: "all 280 rows are in memory"}},
		"failed":           {facts: facts{plan: run, Observation: answered(answer("Failed", "access denied", 3, 28))}, want: engine.Condition{State: v1alpha1.StateFailed, Reason: "LoadFailed", Message: "access denied"}},
		"a node is lost":   {before: served, facts: facts{plan: run, Observation: answered(answer("Degraded", "data node 1 is gone", 20, 28))}, want: engine.Condition{State: v1alpha1.StateDegraded, Reason: "Reloading", Message: "data node 1 is gone"}},
		"the head is lost": {before: served, facts: facts{plan: run, Observation: quiet(head(cachetest.Leaving), node())}, want: engine.Condition{State: v1alpha1.StateDegraded, Reason: "PodsStarting", Message: "1 of 3 pods run"}},
		"a head of the future": {
			facts: facts{plan: run, Observation: answered(answer("Levitating", "", 0, 0))},
			want:  engine.Condition{State: v1alpha1.StatePending, Reason: "HeadUnreachable", Message: `the head says it is "Levitating", which this controller doesn't know: do their versions fit?`},
		},
		"ready, on disks": {
			facts: facts{plan: run, Observation: answered(&view.HeadStatus{State: "Ready", Rows: 280, Nodes: []view.NodeStatus{{Spill: &view.SpillStatus{Bytes: 1}}}})},
			want:  engine.Condition{State: v1alpha1.StateReady, Reason: "Loaded", Message: "all 280 rows are on the data nodes' disks, and in memory as far as they fit"},
		},
		"two copies, both loaded":     {facts: facts{plan: run, Observation: observedAs(copiesOf(2), nil, one, heads.Answer{Pod: two.Pod, Status: one.Status})}, want: engine.Condition{State: v1alpha1.StateReady, Reason: "Loaded", Message: "all 280 rows are in memory"}},
		"two copies, one loads":       {facts: facts{plan: run, Observation: observedAs(copiesOf(2), nil, one, two)}, want: engine.Condition{State: v1alpha1.StateLoading, Reason: "Loading", Message: "copy reviews-cache-1: loading 43%"}},
		"two copies, one loads again": {before: served, facts: facts{plan: run, Observation: observedAs(copiesOf(2), nil, one, two)}, want: engine.Condition{State: v1alpha1.StateDegraded, Reason: "Loading", Message: "copy reviews-cache-1: loading 43%"}},
		"two copies, one doesn't run": {facts: facts{plan: run, Observation: observedAs(copiesOf(2), nil, one)}, want: engine.Condition{State: v1alpha1.StatePending, Reason: "PodsStarting", Message: "the heads of 1 of 2 copies answer; all 280 rows are in memory"}},
		"two copies, one is lost":     {before: served, facts: facts{plan: run, Observation: observedAs(copiesOf(2), nil, one)}, want: engine.Condition{State: v1alpha1.StateDegraded, Reason: "PodsStarting", Message: "the heads of 1 of 2 copies answer; all 280 rows are in memory"}},
		"two copies, one head ready":  {facts: facts{plan: run, Observation: observedAs(copiesOf(2), nil, heads.Answer{Pod: head(cachetest.Ready), Err: errors.New("refused")})}, want: engine.Condition{State: v1alpha1.StatePending, Reason: "HeadUnreachable", Message: "refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, judge(&c.before, c.facts), cmp.AllowUnexported(engine.Condition{})); diff != "" {
				t.Errorf("condition differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMayExplain(t *testing.T) {
	t.Parallel()
	for state, want := range map[v1alpha1.State]bool{
		"": false, v1alpha1.StatePending: true, v1alpha1.StatePlanning: true, v1alpha1.StateLoading: true, v1alpha1.StateDegraded: true,
		v1alpha1.StateReady: false, v1alpha1.StateFailed: false, v1alpha1.StateReleased: false,
	} {
		dc := &v1alpha1.DataCache{Status: v1alpha1.DataCacheStatus{State: state}}
		if mayExplain(dc, plan{}) != want || mayExplain(dc, plan{run: true}) {
			t.Errorf("the head of a cache that is %q is asked before it goes: %v, want %v; while it stays: %v, want no", state, !want, want, mayExplain(dc, plan{run: true}))
		}
	}
}

// TestLife takes one DataCache through its states, deriving each status from the previous one, and checks the events.
func TestLife(t *testing.T) {
	t.Parallel()
	dc := cachetest.Minimal()
	run := plan{run: true}
	second := liveSet()
	second.CreationTimestamp = after(2 * time.Hour)
	user := []string{"team-a/train"}
	for i, step := range []struct {
		at    time.Duration
		facts facts
		check func(s *v1alpha1.DataCacheStatus) string
		event string
	}{
		{0, facts{plan: run, Observation: observedAs(liveSet(), nil), users: user}, func(s *v1alpha1.DataCacheStatus) string {
			return differs(s.ProvisionedTime, &cachetest.Noon) + differs(s.LastUsedTime, &cachetest.Noon) + differs(s.UsedBy, user)
		}, EventProvisioning},
		{time.Second, facts{plan: run, Observation: answered(answer("Planning", "planning", 0, 0)), users: user}, func(s *v1alpha1.DataCacheStatus) string {
			return differs(s.Snapshot, "") + differs(s.LoadedPercent, (*int32)(nil))
		}, EventLoading},
		{2 * time.Second, facts{plan: run, Observation: answered(answer("Loading", "loading 43% (12/28 splits)", 12, 28)), users: user}, func(s *v1alpha1.DataCacheStatus) string {
			return differs(s.Snapshot, "42") + differs(s.LoadedPercent, new(int32(42))) + differs(s.Bytes, new(int64(12<<30))) + differs(s.ReadyTime, (*metav1.Time)(nil))
		}, ""},
		{time.Hour, facts{plan: run, Observation: answered(answer("Ready", "ready", 28, 28)), users: user}, func(s *v1alpha1.DataCacheStatus) string {
			return differs(s.ReadyTime, new(after(time.Hour))) + differs(s.Rows, new(int64(280))) + differs(s.LoadedPercent, new(int32(100)))
		}, EventReady},
		{time.Hour + time.Minute, facts{plan: run, Observation: answered(answer("Degraded", "data node 1 restarted", 20, 28)), users: user}, func(s *v1alpha1.DataCacheStatus) string {
			return differs(s.ReadyTime, new(after(time.Hour))) + differs(s.LoadedPercent, new(int32(71)))
		}, EventDegraded},
		{time.Hour + 2*time.Minute, facts{plan: plan{why: "TrainJob train is suspended"}, Observation: answered(answer("Ready", "ready", 28, 28))}, func(s *v1alpha1.DataCacheStatus) string {
			return differs(s.Rows, (*int64)(nil)) + differs(s.Snapshot, "42") + differs(s.Users, int32(0)) +
				differs(s.LastUsedTime, new(after(time.Hour+2*time.Minute))) + differs(s.ProvisionedTime, (*metav1.Time)(nil))
		}, EventReleased},
		{2 * time.Hour, facts{plan: run, Observation: observedAs(second, nil), users: user}, func(s *v1alpha1.DataCacheStatus) string {
			return differs(s.ProvisionedTime, new(after(2*time.Hour))) + differs(s.ReadyTime, (*metav1.Time)(nil)) + differs(s.Snapshot, "42")
		}, EventProvisioning},
		{2*time.Hour + time.Minute, facts{plan: run, Observation: observedAs(second, nil, heads.Answer{Pod: cachetest.Pod(wellknown.RoleHead, "reviews-cache-0"), Status: answer("Failed", "no such file", 0, 28)}), users: user}, func(s *v1alpha1.DataCacheStatus) string {
			return differs(s.Snapshot, "") // it was never ready, so a retry may plan the current snapshot
		}, EventFailed},
		{3 * time.Hour, facts{plan: plan{why: "TrainJob train is finished"}}, func(s *v1alpha1.DataCacheStatus) string {
			return differs(failure(s), "no such file") + differs(s.LastFailure, &v1alpha1.Failure{Time: after(2*time.Hour + time.Minute), Message: "no such file", Count: 1})
		}, ""},
	} {
		step.facts.now = after(step.at)
		next := statusOf(dc, step.facts)
		if problem := step.check(&next); problem != "" {
			t.Errorf("step %d (%s): %s", i, next.State, problem)
		}
		event := ""
		if ev := change(dc, &arrow.Engine{}, &dc.Status, &next); ev != nil {
			event = ev.reason
		}
		if event != step.event {
			t.Errorf("step %d (%s): event %q, want %q", i, next.State, event, step.event)
		}
		for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionProgressing, v1alpha1.ConditionDegraded} {
			want := map[string]bool{
				v1alpha1.ConditionReady:       next.State == v1alpha1.StateReady,
				v1alpha1.ConditionProgressing: strings.Contains("Pending Planning Loading", string(next.State)),
				v1alpha1.ConditionDegraded:    next.State == v1alpha1.StateDegraded,
			}[kind]
			if got := meta.IsStatusConditionTrue(next.Conditions, kind); got != want {
				t.Errorf("step %d (%s): condition %s is %v, want %v", i, next.State, kind, got, want)
			}
		}
		if problem := differs(reasons(&next), wantReasons(next.State, readyCondition(&next).Reason)); problem != "" {
			t.Errorf("step %d (%s): reasons of conditions %s", i, next.State, problem)
		}
		again := dc.DeepCopy()
		again.Status = next
		if diff := cmp.Diff(next, statusOf(again, step.facts)); diff != "" {
			t.Errorf("step %d (%s): seeing the same again changes the status:\n%s", i, next.State, diff)
		}
		dc.Status = next
	}
}

func reasons(s *v1alpha1.DataCacheStatus) [3]string {
	var all [3]string
	for i, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionProgressing, v1alpha1.ConditionDegraded} {
		all[i] = meta.FindStatusCondition(s.Conditions, kind).Reason
	}
	return all
}

// wantReasons are the expected reasons of Ready, Progressing and Degraded: a condition that is False has a reason of its own, not
// that of another one.
func wantReasons(state v1alpha1.State, ready string) [3]string {
	switch state {
	case v1alpha1.StateReady:
		return [3]string{"Loaded", "LoadComplete", "AllNodesServe"}
	case v1alpha1.StateDegraded:
		return [3]string{"Reloading", "LoadComplete", "Reloading"}
	case v1alpha1.StateFailed, v1alpha1.StateReleased:
		return [3]string{ready, "Stopped", "NotLoaded"}
	}
	return [3]string{ready, ready, "NotLoaded"}
}

func differs(got, want any) string {
	if diff := cmp.Diff(want, got); diff != "" {
		return "(-want +got)\n" + diff
	}
	return ""
}

func TestUsedByIsBounded(t *testing.T) {
	t.Parallel()
	var users []string
	for i := range 250 {
		users = append(users, fmt.Sprintf("team-a/job-%03d", i))
	}
	got := statusOf(cachetest.Minimal(), facts{now: cachetest.Noon, plan: plan{run: true}, users: users})
	if got.Users != 250 || len(got.UsedBy) != 100 || got.UsedBy[99] != "team-a/job-099" {
		t.Errorf("users = %d, usedBy = %d entries up to %s; want 250, 100 up to team-a/job-099", got.Users, len(got.UsedBy), got.UsedBy[len(got.UsedBy)-1])
	}
}

func TestRequeueAfter(t *testing.T) {
	t.Parallel()
	status := func(state v1alpha1.State, provisioned *metav1.Time) v1alpha1.DataCacheStatus {
		return v1alpha1.DataCacheStatus{State: state, ProvisionedTime: provisioned}
	}
	for name, c := range map[string]struct {
		status v1alpha1.DataCacheStatus
		facts  facts
		want   time.Duration
	}{
		"released":                 {status(v1alpha1.StateReleased, nil), facts{now: cachetest.Noon}, 0},
		"name taken":               {status(v1alpha1.StatePending, nil), facts{now: cachetest.Noon, plan: plan{run: true}, obstacle: &podstate.Trouble{Reason: "NameTaken", Message: "taken"}}, 10 * time.Second},
		"released, deleted in 2 h": {status(v1alpha1.StateReleased, nil), facts{now: cachetest.Noon, plan: plan{after: 2 * time.Hour}}, 2 * time.Hour},
		"loading, suspended soon":  {status(v1alpha1.StateLoading, &cachetest.Noon), facts{now: after(time.Hour), plan: plan{run: true, after: 2 * time.Second}}, 2 * time.Second},
		"just asked for":           {status(v1alpha1.StatePending, &cachetest.Noon), facts{now: cachetest.Noon, plan: plan{run: true}}, time.Second},
		"loading for 40 s":         {status(v1alpha1.StateLoading, &cachetest.Noon), facts{now: after(40 * time.Second), plan: plan{run: true}}, 4 * time.Second},
		"loading for an hour":      {status(v1alpha1.StateLoading, &cachetest.Noon), facts{now: after(time.Hour), plan: plan{run: true}}, 10 * time.Second},
		"pods missing for an hour": {status(v1alpha1.StatePending, &cachetest.Noon), facts{now: after(time.Hour), plan: plan{run: true}, Observation: engine.Observation{Condition: engine.Condition{Reason: engine.ReasonStarting}}}, 3 * time.Second},
		"an event will tell":       {status(v1alpha1.StatePending, &cachetest.Noon), facts{now: cachetest.Noon, plan: plan{run: true}, Observation: engine.Observation{AwaitsEvent: true, Condition: engine.Condition{Reason: engine.ReasonStarting}}}, 10 * time.Second},
		"ready":                    {status(v1alpha1.StateReady, &cachetest.Noon), facts{now: cachetest.Noon, plan: plan{run: true}}, 30 * time.Second},
		"ready, unused soon":       {status(v1alpha1.StateReady, &cachetest.Noon), facts{now: cachetest.Noon, plan: plan{run: true, after: 3 * time.Second}}, 3 * time.Second},
		"ready, unused in 10h":     {status(v1alpha1.StateReady, &cachetest.Noon), facts{now: cachetest.Noon, plan: plan{run: true, after: 10 * time.Hour}}, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := requeueAfter(&c.status, c.facts); got != c.want {
				t.Errorf("requeueAfter = %s, want %s", got, c.want)
			}
		})
	}
}

// TestFailuresInARow checks that consecutive failures are counted, that the last one stays in the status during a retry, and that
// success resets the count.
func TestFailuresInARow(t *testing.T) {
	t.Parallel()
	dc := cachetest.Minimal()
	dc.Annotations = map[string]string{kube.AnnotationRetry: "once"}
	step := func(at time.Duration, p plan, h *view.HeadStatus) {
		f := facts{now: after(at), plan: p}
		if h != nil {
			f.Observation = answered(h)
		}
		dc.Status = statusOf(dc, f)
	}
	failure := func(at time.Duration, count int32) *v1alpha1.Failure {
		return &v1alpha1.Failure{Time: after(at), Message: "no such file", Count: count, Retry: "once"}
	}
	run, restart := plan{run: true}, plan{run: true, restart: true}
	for i, c := range []struct {
		plan plan
		head *view.HeadStatus
		want *v1alpha1.Failure
	}{
		{run, answer("Failed", "no such file", 0, 1), failure(0, 1)},
		{plan{run: true, hold: true}, answer("Failed", "no such file", 0, 1), failure(0, 1)},
		{restart, nil, failure(0, 1)},
		{run, answer("Loading", "loading", 0, 1), failure(0, 1)},
		{run, answer("Failed", "no such file", 0, 1), failure(4*time.Minute, 2)},
		{restart, nil, failure(4*time.Minute, 2)},
		{run, answer("Ready", "ready", 1, 1), nil},
	} {
		step(time.Duration(i)*time.Minute, c.plan, c.head)
		if diff := cmp.Diff(c.want, dc.Status.LastFailure); diff != "" {
			t.Errorf("step %d (%s): lastFailure (-want +got):\n%s", i, dc.Status.State, diff)
		}
	}
}

// TestObservedGeneration checks that observedGeneration is not advanced while an obstacle prevents the spec from being applied.
func TestObservedGeneration(t *testing.T) {
	t.Parallel()
	dc := cachetest.Minimal()
	dc.Generation, dc.Status.ObservedGeneration = 7, 6
	for _, c := range []struct {
		obstacle *podstate.Trouble
		want     int64
	}{{&podstate.Trouble{Reason: "Refused", Message: "quota"}, 6}, {nil, 7}} {
		if got := statusOf(dc, facts{now: cachetest.Noon, plan: plan{run: true}, obstacle: c.obstacle}).ObservedGeneration; got != c.want {
			t.Errorf("observedGeneration = %d with obstacle %v, want %d", got, c.obstacle, c.want)
		}
	}
}

// TestSetAccess checks that a condition of access goes when the engine no longer reports it, and stays while the engine knows nothing.
func TestSetAccess(t *testing.T) {
	t.Parallel()
	known := metav1.Condition{Type: v1alpha1.ConditionReadersKnown, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonKnown}
	keyless := metav1.Condition{Type: v1alpha1.ConditionTokensUnverifiable, Status: metav1.ConditionTrue, Reason: "NoKeys"}
	status := &v1alpha1.DataCacheStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady}}}
	for i, step := range []struct {
		access []metav1.Condition
		want   []string
	}{
		{[]metav1.Condition{known, keyless}, []string{v1alpha1.ConditionReady, v1alpha1.ConditionReadersKnown, v1alpha1.ConditionTokensUnverifiable}},
		{nil, []string{v1alpha1.ConditionReady, v1alpha1.ConditionReadersKnown, v1alpha1.ConditionTokensUnverifiable}},
		{[]metav1.Condition{known}, []string{v1alpha1.ConditionReady, v1alpha1.ConditionReadersKnown}},
		{[]metav1.Condition{known, keyless}, []string{v1alpha1.ConditionReady, v1alpha1.ConditionReadersKnown, v1alpha1.ConditionTokensUnverifiable}},
	} {
		setAccess(status, step.access, 1, after(0))
		var got []string
		for _, c := range status.Conditions {
			got = append(got, c.Type)
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%d: conditions differ (-want +got):\n%s", i, diff)
		}
	}
}
