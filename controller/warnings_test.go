// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// warningAbout returns an event observed some seconds after the creation of liveSet's set.
func warningAbout(kind, name, reason, message string, seconds int) corev1.Event {
	return corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name, UID: types.UID(name + "-uid")}, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		LastTimestamp: metav1.NewTime(liveSet().CreationTimestamp.Add(time.Duration(seconds) * time.Second)),
	}
}

func TestTroubleOfEvents(t *testing.T) {
	t.Parallel()
	made := func(pod *corev1.Pod, seconds int, changes ...cachetest.PodChange) *corev1.Pod {
		pod.UID = types.UID(pod.Name + "-uid")
		pod.CreationTimestamp = metav1.NewTime(liveSet().CreationTimestamp.Add(time.Duration(seconds) * time.Second))
		for _, change := range changes {
			change(pod)
		}
		return pod
	}
	scheduled := func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodPending
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	}
	quota := warningAbout("StatefulSet", "reviews-cache", "FailedCreate", "exceeded quota", 2)
	head := func() *corev1.Pod { return made(cachetest.Pod(wellknown.RoleHead, "reviews-cache-0"), 1) }
	all := func() []*corev1.Pod {
		return []*corev1.Pod{head(), made(cachetest.Pod(wellknown.RoleNode, "reviews-cache-0-1"), 1), made(cachetest.Pod(wellknown.RoleNode, "reviews-cache-0-2"), 1)}
	}
	for name, c := range map[string]struct {
		pods   []*corev1.Pod
		events []corev1.Event
		want   *podstate.Trouble
	}{
		"nothing is said":        {nil, nil, nil},
		"no pod may be made":     {nil, []corev1.Event{quota}, &podstate.Trouble{Reason: "FailedCreate", Message: "StatefulSet reviews-cache: exceeded quota"}},
		"the newest":             {nil, []corev1.Event{quota, warningAbout("StatefulSet", "reviews-cache", "FailedCreate", "denied", 3)}, &podstate.Trouble{Reason: "FailedCreate", Message: "StatefulSet reviews-cache: denied"}},
		"no data node":           {[]*corev1.Pod{head()}, []corev1.Event{warningAbout("StatefulSet", "reviews-cache-0", "FailedCreate", "denied", 2)}, &podstate.Trouble{Reason: "FailedCreate", Message: "StatefulSet reviews-cache-0: denied"}},
		"no StatefulSet":         {nil, []corev1.Event{warningAbout("LeaderWorkerSet", "reviews-cache", "FailedCreate", "forbidden", 2)}, &podstate.Trouble{Reason: "FailedCreate", Message: "LeaderWorkerSet reviews-cache: forbidden"}},
		"of another cache":       {nil, []corev1.Event{warningAbout("StatefulSet", "reviews-cache-x", "FailedCreate", "denied", 2), warningAbout("Job", "reviews-cache", "FailedCreate", "denied", 2)}, nil},
		"of an earlier set":      {nil, []corev1.Event{warningAbout("StatefulSet", "reviews-cache", "FailedCreate", "denied", -60)}, nil},
		"overcome":               {[]*corev1.Pod{made(head(), 9)}, []corev1.Event{quota}, nil},
		"all pods are there":     {all(), []corev1.Event{quota}, nil},
		"a volume that is not":   {[]*corev1.Pod{made(head(), 1, scheduled)}, []corev1.Event{warningAbout("Pod", "reviews-cache-0", "FailedMount", `configmap "ca" not found`, 2)}, &podstate.Trouble{Reason: "FailedMount", Message: `Pod reviews-cache-0: configmap "ca" not found`}},
		"an old pod of its name": {[]*corev1.Pod{made(head(), 1, scheduled, func(pod *corev1.Pod) { pod.UID = "another" })}, []corev1.Event{warningAbout("Pod", "reviews-cache-0", "FailedMount", "no", 2)}, nil},
		"a claim that a quota refuses": {
			[]*corev1.Pod{made(head(), 1, cachetest.Unschedulable, lacksClaim)},
			[]corev1.Event{
				warningAbout("Pod", "reviews-cache-0", "FailedBinding", "ephemeral volume spill: exceeded quota", 2),
				warningAbout("Pod", "reviews-cache-0", "FailedScheduling", "waiting for ephemeral volume controller", 3),
			},
			&podstate.Trouble{Reason: "FailedBinding", Message: "Pod reviews-cache-0: ephemeral volume spill: exceeded quota"},
		},
		"a pod that runs": {[]*corev1.Pod{head()}, []corev1.Event{warningAbout("Pod", "reviews-cache-0", "Unhealthy", "no", 2)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, podstate.TroubleOfEvents(liveSet(), c.pods, c.events), cmp.AllowUnexported(podstate.Trouble{})); diff != "" {
				t.Errorf("trouble differs (-want +got):\n%s", diff)
			}
		})
	}
}

// lacksClaim makes a pod that is unschedulable wait for the claim of an ephemeral volume.
func lacksClaim(pod *corev1.Pod) {
	pod.Status.Conditions[0].Message = `0/1 nodes are available: waiting for ephemeral volume controller to create the persistentvolumeclaim "reviews-cache-0-1-spill".`
}

func TestNeedsWarnings(t *testing.T) {
	t.Parallel()
	begun := liveSet().CreationTimestamp.Time
	old := func(pod *corev1.Pod) *corev1.Pod { pod.CreationTimestamp = metav1.NewTime(begun); return pod }
	head := old(cachetest.Pod(wellknown.RoleHead, "reviews-cache-0"))
	for name, c := range map[string]struct {
		pods  []*corev1.Pod
		after time.Duration
		want  bool
	}{
		"a moment ago":       {nil, time.Second, false},
		"none yet":           {nil, 4 * time.Second, true},
		"one of three":       {[]*corev1.Pod{head}, 4 * time.Second, true},
		"the scheduler says": {[]*corev1.Pod{old(cachetest.Pod(wellknown.RoleHead, "reviews-cache-0", cachetest.Unschedulable))}, 4 * time.Second, false},
		"a claim is missing": {[]*corev1.Pod{old(cachetest.Pod(wellknown.RoleNode, "reviews-cache-0-1", cachetest.Unschedulable, lacksClaim))}, 4 * time.Second, true},
		"all of them":        {[]*corev1.Pod{head, head, head}, time.Hour, false},
	} {
		if got := podstate.NeedsWarnings(liveSet(), c.pods, begun.Add(c.after)); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
