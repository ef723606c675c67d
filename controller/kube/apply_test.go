// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// mergeCases has, for each kind of object that we apply, an existing object, the wanted one, and the expected merge: our fields are
// restored, additions of the API server or of others stay.
var mergeCases = map[string]struct{ have, want, merged client.Object }{
	"ServiceAccount": {
		have: &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: "7", Finalizers: []string{"example.com/theirs"},
				Labels:      map[string]string{"theirs": "kept", wellknown.LabelManagedBy: "somebody"},
				Annotations: map[string]string{"theirs": "kept", "role": "another"},
			},
			AutomountServiceAccountToken: new(true), Secrets: []corev1.ObjectReference{{Name: "theirs"}},
		},
		want: &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{wellknown.LabelManagedBy: wellknown.ManagedBy}, Annotations: map[string]string{"role": "reader"},
			},
			AutomountServiceAccountToken: new(false),
		},
		merged: &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: "7", Finalizers: []string{"example.com/theirs"},
				Labels:      map[string]string{"theirs": "kept", wellknown.LabelManagedBy: wellknown.ManagedBy},
				Annotations: map[string]string{"theirs": "kept", "role": "reader", kube.AnnotationApplied: "role"},
			},
			AutomountServiceAccountToken: new(false), Secrets: []corev1.ObjectReference{{Name: "theirs"}},
		},
	},
	"ConfigMap": {
		have:   &corev1.ConfigMap{Data: map[string]string{workload.EnvPin: "666", "added": "goes"}},
		want:   &corev1.ConfigMap{Data: map[string]string{workload.EnvPin: "7"}},
		merged: &corev1.ConfigMap{Data: map[string]string{workload.EnvPin: "7"}},
	},
	"Service": {
		have: &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "mine"}, ExternalName: "elsewhere",
			Ports: []corev1.ServicePort{{Name: "mine", Port: 1}}, ClusterIP: "10.0.0.7", SessionAffinity: corev1.ServiceAffinityNone,
		}},
		want: &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"role": "head"}, Ports: []corev1.ServicePort{{Name: "flight", Port: 50051}},
			PublishNotReadyAddresses: true,
		}},
		merged: &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"role": "head"}, Ports: []corev1.ServicePort{{Name: "flight", Port: 50051}},
			PublishNotReadyAddresses: true, ClusterIP: "10.0.0.7", SessionAffinity: corev1.ServiceAffinityNone,
		}},
	},
	"NetworkPolicy": {
		have: &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{}}}},
		want: &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}},
		// A rule that somebody added would let others in.
		merged: &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}},
	},
	"PodDisruptionBudget": {
		have:   &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromString("100%"))}},
		want:   &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(0))}},
		merged: &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(0))}},
	},
	"LeaderWorkerSet": { // made by an earlier release for pods with the same settings
		have:   setOf(7, 3, "the image that it was started with", map[string]string{kube.AnnotationPodSettings: "same", "theirs": "kept"}),
		want:   setOf(2, 5, "a newer image", map[string]string{kube.AnnotationPodSettings: "same"}),
		merged: setOf(2, 3, "the image that it was started with", map[string]string{kube.AnnotationPodSettings: "same", kube.AnnotationApplied: kube.AnnotationPodSettings, "theirs": "kept"}),
	},
}

// setOf returns a LeaderWorkerSet with a number of copies of a size, whose pods run an image.
func setOf(copies, size int32, image string, annotations map[string]string) *lws.LeaderWorkerSet {
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}
	return &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
		Spec: lws.LeaderWorkerSetSpec{
			Replicas:             new(copies),
			LeaderWorkerTemplate: lws.LeaderWorkerTemplate{Size: new(size), LeaderTemplate: &pod, WorkerTemplate: pod},
		},
	}
}

func TestMergeDesired(t *testing.T) {
	t.Parallel()
	for kind, c := range mergeCases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			have, _ := c.have.DeepCopyObject().(client.Object)
			kube.MergeDesired(have, c.want)
			if diff := cmp.Diff(c.merged, have); diff != "" {
				t.Errorf("merged object differs (-want +got):\n%s", diff)
			}
		})
	}
	set, err := workload.LeaderWorkerSet(cachetest.Minimal(), workload.Server{Image: "image"})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range append(workload.Objects(cachetest.Everything(), workload.Access{}, []networkingv1.NetworkPolicyPeer{workload.FromNamespaces("datacache-system")}), set) {
		kind := reflect.TypeOf(object).Elem().Name()
		if _, ok := mergeCases[kind]; !ok {
			t.Errorf("a cache has a %s, of which no merge is tried", kind)
		}
	}
}

// TestMergeAnnotations checks that annotations that we wrote and no longer want are removed, and that those of others stay.
func TestMergeAnnotations(t *testing.T) {
	t.Parallel()
	first := kube.MergeAnnotations(map[string]string{"theirs": "1"}, map[string]string{"role": "reader", "region": "eu"})
	if diff := cmp.Diff(map[string]string{"theirs": "1", "role": "reader", "region": "eu", kube.AnnotationApplied: "region role"}, first); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}
	second := kube.MergeAnnotations(first, map[string]string{"region": "us"})
	if diff := cmp.Diff(map[string]string{"theirs": "1", "region": "us", kube.AnnotationApplied: "region"}, second); diff != "" {
		t.Errorf("a role was taken out of the spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"theirs": "1"}, kube.MergeAnnotations(second, nil)); diff != "" {
		t.Errorf("all were taken out of the spec (-want +got):\n%s", diff)
	}
	if got := kube.MergeAnnotations(nil, nil); got != nil {
		t.Errorf("nothing of nothing is %v", got)
	}
}

func TestForeign(t *testing.T) {
	t.Parallel()
	want := workload.Service(cachetest.Minimal())
	another := cachetest.Minimal()
	another.UID = "made-anew"
	ofTrainJob := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: "train-cache-service", Namespace: "team-a",
		OwnerReferences: []metav1.OwnerReference{{Kind: "TrainJob", Name: "train", UID: "job-uid", Controller: new(true)}},
	}}
	for name, c := range map[string]struct {
		have *corev1.Service
		want string
	}{
		"ours":                    {want, ""},
		"nobody's":                {&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "n"}}, "Service n/s exists and belongs to nobody that datacache knows: delete or rename it, or choose another name"},
		"of the DataCache before": {workload.Service(another), "Service team-a/reviews-cache-service: the object of an earlier owner of the same name still goes"},
		"of a TrainJob":           {ofTrainJob, "Service team-a/train-cache-service exists and belongs to TrainJob train: delete or rename it, or choose another name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if err := kube.Foreign("Service", c.have, want); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("foreign = %q\nwant      %q", got, c.want)
			}
		})
	}
}
