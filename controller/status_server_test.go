// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestOnlyItsStepsAreAnswered checks that the state of a cache is told only to a step of its namespace.
func TestOnlyItsStepsAreAnswered(t *testing.T) {
	pod := func(namespace string, uid types.UID, replicatedJob string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: string(uid), UID: uid, Labels: map[string]string{wellknown.LabelJobSet: "train", wellknown.LabelReplicatedJob: replicatedJob},
		}}
	}
	dc := &v1alpha1.DataCache{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pictures"}}
	dc.Status = v1alpha1.DataCacheStatus{
		State: v1alpha1.StateReady, Users: 1, UsedBy: []string{"team-a/train"},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: "Loaded", Message: "why"}},
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(dc,
		pod("team-a", "step", wellknown.StepName), pod("team-a", "training", "node"), pod("team-b", "foreign", wellknown.StepName)).Build()
	s := &statusServer{caches: objects, live: objects}
	for query, want := range map[string]int{
		"?pod=step": http.StatusOK, "?pod=training": http.StatusForbidden, "?pod=foreign": http.StatusForbidden, "?pod=": http.StatusForbidden, "": http.StatusForbidden,
		"?job=train": http.StatusForbidden,
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/status/team-a/"+dc.Name+query, nil)
		request.SetPathValue("namespace", "team-a")
		request.SetPathValue("name", dc.Name)
		answer := httptest.NewRecorder()
		s.ServeHTTP(answer, request)
		if answer.Code != want {
			t.Errorf("%s: status %d (%s), want %d", query, answer.Code, answer.Body, want)
		}
		if want == http.StatusOK != strings.Contains(answer.Body.String(), "Ready") {
			t.Errorf("%s: it is told %s", query, answer.Body)
		}
	}
}

// TestWaitStatus checks what a step that waits is told. None may mount files before the cache knows its TrainJob as a user.
func TestWaitStatus(t *testing.T) {
	status := func(state v1alpha1.State, reason string, users ...string) v1alpha1.DataCacheStatus {
		return v1alpha1.DataCacheStatus{
			State: state, UsedBy: users, Users: int32(len(users)),
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: reason, Message: "why"}},
		}
	}
	many := status(v1alpha1.StateReady, "Loaded", "team-a/other")
	many.Users = 101
	for name, tt := range map[string]struct {
		status v1alpha1.DataCacheStatus
		want   waitStatus
	}{
		"new":             {v1alpha1.DataCacheStatus{}, waitStatus{v1alpha1.StatePending, "the controller has not seen it yet"}},
		"ready":           {status(v1alpha1.StateReady, "Loaded", "team-a/train"), waitStatus{v1alpha1.StateReady, "why"}},
		"ready for many":  {many, waitStatus{v1alpha1.StateReady, "why"}},
		"ready for other": {status(v1alpha1.StateReady, "Loaded", "team-a/other"), waitStatus{v1alpha1.StatePending, "DataCache pictures is ready and does not know TrainJob train as its user yet"}},
		"ready for none":  {status(v1alpha1.StateReady, "Loaded"), waitStatus{v1alpha1.StatePending, "DataCache pictures is ready and does not know TrainJob train as its user yet"}},
		"an obstacle":     {status(v1alpha1.StatePending, "FluidMissing", "team-a/train"), waitStatus{v1alpha1.StatePending, "FluidMissing: why"}},
		"name taken":      {status(v1alpha1.StatePending, "NameTaken", "team-a/train"), waitStatus{v1alpha1.StateFailed, "why"}},
		"failed":          {status(v1alpha1.StateFailed, "LoadFailed", "team-a/train"), waitStatus{v1alpha1.StateFailed, "why"}},
		"released":        {status(v1alpha1.StateReleased, "Released"), waitStatus{v1alpha1.StateReleased, "why"}},
	} {
		t.Run(name, func(t *testing.T) {
			dc := &v1alpha1.DataCache{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pictures"}}
			dc.Status = tt.status
			if got := waitStatusOf(dc, "train"); got != tt.want {
				t.Errorf("it is told %+v, want %+v", got, tt.want)
			}
		})
	}
}
