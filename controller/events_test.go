// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/arrow"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestObstacleEvent checks that pods that can't start cause one event for each reason, even if their messages change.
func TestObstacleEvent(t *testing.T) {
	t.Parallel()
	dc := cachetest.Minimal()
	run := plan{run: true}
	status := func(s v1alpha1.State, reason, message string) v1alpha1.DataCacheStatus {
		out := v1alpha1.DataCacheStatus{State: s}
		setConditions(&out, engine.Condition{State: s, Reason: reason, Message: message}, 1, cachetest.Noon)
		return out
	}
	pending := status(v1alpha1.StatePending, engine.ReasonStarting, "0 of 3 pods run")
	pull := status(v1alpha1.StatePending, "ImagePullBackOff", "back-off")
	taken := statusOf(dc, facts{now: cachetest.Noon, plan: run, obstacle: &podstate.Trouble{Reason: engine.ReasonNameTaken, Message: "Service a/b exists"}})
	for name, c := range map[string]struct {
		old, next v1alpha1.DataCacheStatus
		want      *objectEvent
	}{
		"begins":                {pending, pull, &objectEvent{"Warning", EventProvisioning, "cache reviews: back-off"}},
		"begins at once":        {v1alpha1.DataCacheStatus{}, pull, &objectEvent{"Warning", EventProvisioning, "cache reviews: back-off"}},
		"says it in new words":  {pull, status(v1alpha1.StatePending, "ImagePullBackOff", "back-off 10 s"), nil},
		"has another reason":    {pull, status(v1alpha1.StatePending, "CrashLoopBackOff", "exit code 1"), &objectEvent{"Warning", EventProvisioning, "cache reviews: exit code 1"}},
		"ends":                  {pull, pending, nil},
		"while it loads":        {status(v1alpha1.StateLoading, engine.ReasonLoading, "1%"), status(v1alpha1.StateLoading, "OOMKilled", "2%; killed"), &objectEvent{"Warning", EventLoading, "cache reviews: 2%; killed"}},
		"while it reloads":      {status(v1alpha1.StateDegraded, engine.ReasonReloading, "x"), status(v1alpha1.StateDegraded, "Unschedulable", "no room"), &objectEvent{"Warning", EventDegraded, "cache reviews: no room"}},
		"a name is taken":       {v1alpha1.DataCacheStatus{}, taken, &objectEvent{"Warning", EventFailed, "cache reviews: Service a/b exists; it is tried again every 10s"}},
		"loading after plans":   {status(v1alpha1.StatePlanning, engine.ReasonPlanning, "x"), status(v1alpha1.StateLoading, engine.ReasonLoading, "y"), nil},
		"released from nothing": {v1alpha1.DataCacheStatus{}, status(v1alpha1.StateReleased, engine.ReasonReleased, "idle"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, change(dc, &arrow.Engine{}, &c.old, &c.next), cmp.AllowUnexported(objectEvent{})); diff != "" {
				t.Errorf("event differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecordOnce(t *testing.T) {
	t.Parallel()
	recorder := record.NewFakeRecorder(100)
	events := newEventRecorder(recorder)
	job := trainJob()
	anew := trainJob()
	anew.UID = "made-anew"
	events.recordOnce(job, warning(EventFailed, "no cache: a"))
	events.recordOnce(job, warning(EventFailed, "no cache: a"))
	events.recordOnce(job, warning(EventFailed, "no cache: b"))
	events.recordOnce(anew, warning(EventFailed, "no cache: b"))
	events.forget(kube.KeyOf(kube.Qualified(job)))
	events.recordOnce(anew, warning(EventFailed, "no cache: b"))
	close(recorder.Events)
	var got []string
	for text := range recorder.Events {
		got = append(got, text)
	}
	want := []string{"Warning CacheFailed no cache: a", "Warning CacheFailed no cache: b", "Warning CacheFailed no cache: b", "Warning CacheFailed no cache: b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
}
