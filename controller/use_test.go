// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/test/kit/cachetest"
)

func TestUseService(t *testing.T) {
	t.Parallel()
	dc := cachetest.Minimal()
	dc.Namespace = "platform"
	got := useService(trainJob(), "train-cache-service", dc, "example.org")
	if want := "reviews-cache-service.platform.svc.example.org"; got.Spec.ExternalName != want || got.Spec.Type != corev1.ServiceTypeExternalName {
		t.Errorf("Service of type %s leads to %s, want ExternalName to %s", got.Spec.Type, got.Spec.ExternalName, want)
	}
	if diff := cmp.Diff([]string{"platform/reviews"}, cacheOfService(got)); diff != "" {
		t.Errorf("recorded use differs (-want +got):\n%s", diff)
	}
	owner := metav1.GetControllerOf(got)
	if owner == nil || owner.UID != "job-uid" || owner.BlockOwnerDeletion != nil {
		t.Errorf("controller = %+v, want the TrainJob, whose deletion it does not block", owner)
	}
}
