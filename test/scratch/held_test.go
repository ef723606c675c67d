// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/scratch"
)

// quota checks that claims that a quota forbids are retried, with the API server's reason on the pod and the job, and don't delay
// other jobs.
func quota(t *testing.T) {
	limited, other := disks(t, replicas), disks(t, replicas)
	limit := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: limited, Name: "claims"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePersistentVolumeClaims: resource.MustParse("1")}},
	}
	cluster.Create(t, limit)
	cluster.Become(t, limit, limited, limit.Name, "in force", func() error {
		if len(limit.Status.Used) == 0 {
			return errors.New("it counts nothing")
		}
		return nil
	})
	cluster.Create(t, indexedJob(limited, "train", replicas))
	for _, kind := range []string{"Pod", "Job"} {
		awaitEvent(t, limited, kind, scratch.EventRefused, "forbidden: exceeded quota: claims", "limited: persistentvolumeclaims=1")
	}
	running(t, limited, 1, nil)
	if n := len(waiting(pods(t, limited))); n != 1 || len(claims(t, limited)) != 1 {
		t.Errorf("%d pods wait, there are %d claims; want 1 of each", n, len(claims(t, limited)))
	}
	cluster.Create(t, indexedJob(other, "train", replicas))
	running(t, other, replicas, nil)

	change(t, limit, func() { limit.Spec.Hard[corev1.ResourcePersistentVolumeClaims] = resource.MustParse("2") })
	haveClaims(t, limited, "scratch-train-0", "scratch-train-1")
	running(t, limited, replicas, nil)
}

// foreignClaim checks that a claim with the right name that somebody else created is not used. The pod waits until it is gone, with
// an event.
func foreignClaim(t *testing.T) {
	ns := disks(t, replicas)
	theirs := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "scratch-train-0"}, Spec: scratchVolume(ns).Ephemeral.VolumeClaimTemplate.Spec,
	}
	cluster.Create(t, theirs)
	job := indexedJob(ns, "train", replicas)
	cluster.Create(t, job)
	for _, kind := range []string{"Pod", "Job"} {
		awaitEvent(t, ns, kind, scratch.EventTaken, "claim scratch-train-0 exists already and is not used", "no controller", "delete it, or rename")
	}
	running(t, ns, 1, nil)
	held := waiting(pods(t, ns))
	if len(held) != 1 || held[0].Spec.Hostname != "train-0" {
		t.Fatalf("pods that wait: %+v, want that of train-0", held)
	}
	before := theirs.UID
	cluster.Appear(t, theirs, ns, theirs.Name)
	if theirs.UID != before || len(theirs.OwnerReferences) > 0 || len(theirs.Labels) > 0 {
		t.Errorf("the claim was changed: %+v", theirs.ObjectMeta)
	}

	cluster.Delete(t, theirs)
	running(t, ns, replicas, nil)
	for _, c := range claims(t, ns) {
		if !metav1.IsControlledBy(&c, job) {
			t.Errorf("claim %s is not the job's: %+v", c.Name, c.OwnerReferences)
		}
	}
}

// stranded checks that a pod whose claim's volume is on a missing node waits, with an event that says why; it gets an empty disk once
// somebody deletes the claim.
func stranded(t *testing.T) {
	ns := cluster.Namespace(t)
	mode := storagev1.VolumeBindingImmediate // binds without a node
	cluster.Create(t, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: ns}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &mode})
	lost := volume(ns, "lost")
	lost.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-of-yesterday"}}},
	}}}}
	cluster.Create(t, lost)
	cluster.Create(t, indexedJob(ns, "train", 1))
	before := haveClaims(t, ns, "scratch-train-0")
	bound := &corev1.PersistentVolumeClaim{}
	cluster.Become(t, bound, ns, "scratch-train-0", "bound", func() error {
		if bound.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("it is %s", bound.Status.Phase)
		}
		return nil
	})
	for _, pod := range pods(t, ns) {
		cluster.Delete(t, &pod)
	}
	for _, kind := range []string{"Pod", "Job"} {
		awaitEvent(t, ns, kind, scratch.EventStranded, "claim scratch-train-0 is bound to the volume "+lost.Name, "delete the claim")
	}
	gated(t, ns, 1)
	sameClaims(t, ns, before)

	cluster.Create(t, volume(ns, "fresh"))
	cluster.Delete(t, bound)
	running(t, ns, 1, nil)
}
