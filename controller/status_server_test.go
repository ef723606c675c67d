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
	dc := files()
	dc.Namespace = "team-a"
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
