// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// TestMergeDesired: what is ours comes back, what others or the API server added stays.
func TestMergeDesired(t *testing.T) {
	t.Parallel()
	dc := everything()
	objects := append(desiredObjects(dc, "datacache-system"), liveSet())
	for _, want := range objects {
		t.Run(kindName(want), func(t *testing.T) {
			t.Parallel()
			have, _ := want.DeepCopyObject().(client.Object)
			have.SetLabels(map[string]string{"other": "kept", LabelManagedBy: "somebody"})
			have.SetAnnotations(map[string]string{"other": "kept"})
			have.SetFinalizers([]string{"example.com/kept"})
			spoil(have)
			mergeDesired(have, want)

			fixed, _ := want.DeepCopyObject().(client.Object)
			keepDefaults(fixed)
			if have.GetLabels()["other"] != "kept" || have.GetLabels()[LabelManagedBy] != ManagedBy || have.GetAnnotations()["other"] != "kept" || len(have.GetFinalizers()) != 1 {
				t.Errorf("labels %v, annotations %v, finalizers %v, want ours and the other's", have.GetLabels(), have.GetAnnotations(), have.GetFinalizers())
			}
			for _, object := range []client.Object{have, fixed} {
				object.SetLabels(nil)
				object.SetAnnotations(nil)
				object.SetFinalizers(nil)
			}
			if diff := cmp.Diff(fixed, have); diff != "" {
				t.Errorf("merged object differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMergeAnnotations: what we wrote and no longer want goes, what others wrote stays.
func TestMergeAnnotations(t *testing.T) {
	t.Parallel()
	first := mergeAnnotations(map[string]string{"theirs": "1"}, map[string]string{"role": "reader", "region": "eu"})
	if diff := cmp.Diff(map[string]string{"theirs": "1", "role": "reader", "region": "eu", annotationApplied: "region role"}, first); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}
	second := mergeAnnotations(first, map[string]string{"region": "us"})
	if diff := cmp.Diff(map[string]string{"theirs": "1", "region": "us", annotationApplied: "region"}, second); diff != "" {
		t.Errorf("a role was taken out of the spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"theirs": "1"}, mergeAnnotations(second, nil)); diff != "" {
		t.Errorf("all were taken out of the spec (-want +got):\n%s", diff)
	}
	if got := mergeAnnotations(nil, nil); got != nil {
		t.Errorf("nothing of nothing is %v", got)
	}
}

func kindName(object client.Object) string {
	switch object.(type) {
	case *corev1.ServiceAccount:
		return "ServiceAccount"
	case *corev1.Service:
		return "Service"
	case *corev1.ConfigMap:
		return "ConfigMap"
	case *networkingv1.NetworkPolicy:
		return "NetworkPolicy"
	case *policyv1.PodDisruptionBudget:
		return "PodDisruptionBudget"
	case *lws.LeaderWorkerSet:
		return "LeaderWorkerSet"
	}
	return "another"
}

// spoil changes what is ours, and adds what the API server would.
func spoil(object client.Object) {
	switch object := object.(type) {
	case *corev1.ServiceAccount:
		object.AutomountServiceAccountToken = new(true)
	case *corev1.Service:
		object.Spec.Selector = map[string]string{"app": "mine"}
		object.Spec.Ports = nil
		object.Spec.PublishNotReadyAddresses = false
	case *corev1.ConfigMap:
		object.Data = map[string]string{envPin: "666"}
	case *networkingv1.NetworkPolicy:
		object.Spec.Ingress = nil
	case *policyv1.PodDisruptionBudget:
		object.Spec.MaxUnavailable = new(intstr.FromString("100%"))
	case *lws.LeaderWorkerSet:
		object.Spec.Replicas = new(int32(7))
	}
	keepDefaults(object)
}

func keepDefaults(object client.Object) {
	switch object := object.(type) {
	case *corev1.Service:
		object.Spec.ClusterIP = "10.0.0.7"
	case *lws.LeaderWorkerSet:
		object.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image = "the image that it was started with"
	}
}

func TestForeign(t *testing.T) {
	t.Parallel()
	want := cacheService(minimal())
	another := minimal()
	another.UID = "made-anew"
	for name, c := range map[string]struct {
		have *corev1.Service
		want string
	}{
		"ours":                    {want, ""},
		"nobody's":                {&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "n"}}, "Service n/s exists and belongs to nobody that datacache knows: delete or rename it, or choose another name"},
		"of the DataCache before": {cacheService(another), "Service team-a/reviews-cache-service: the object of an earlier owner of the same name still goes"},
		"of a TrainJob":           {useService(trainJob(), minimal(), "cluster.local"), "Service team-a/train-cache-service exists and belongs to TrainJob train: delete or rename it, or choose another name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if err := foreign("Service", c.have, want); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("foreign = %q\nwant      %q", got, c.want)
			}
		})
	}
}

func TestUseService(t *testing.T) {
	t.Parallel()
	dc := minimal()
	dc.Namespace = "platform"
	got := useService(trainJob(), dc, "example.org")
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

func TestObstacleOf(t *testing.T) {
	t.Parallel()
	services := schema.GroupResource{Resource: "services"}
	terminating := apierrors.NewForbidden(services, "s", errors.New("because it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		err  error
		want string // the reason
	}{
		"none":                      {nil, ""},
		"passes":                    {apierrors.NewServiceUnavailable("etcd"), ""},
		"goes by itself":            {fmt.Errorf("Service: %w", errGoing), ""},
		"the namespace goes":        {fmt.Errorf("create: %w", terminating), ""},
		"a name is taken":           {fmt.Errorf("keep: %w", &foreignError{"Service", "a/b", "nobody"}), "NameTaken"},
		"a quota":                   {fmt.Errorf("create: %w", apierrors.NewForbidden(services, "s", errors.New("exceeded quota"))), "Refused"},
		"the API server's checking": {apierrors.NewInvalid(schema.GroupKind{Kind: "LeaderWorkerSet"}, "s", nil), "Refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reason := ""
			if got := obstacleOf(c.err); got != nil {
				reason = got.reason
			}
			if reason != c.want {
				t.Errorf("obstacle %q, want %q", reason, c.want)
			}
		})
	}
}
