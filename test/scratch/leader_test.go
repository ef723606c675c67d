// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// takesOver kills the manager in the middle of the queue, and starts another one, which continues: claims must be created in the
// order of the pods' creation, namespace and index, and each once.
func takesOver(t *testing.T) {
	const replicas, before = 20, 5 // pods of each of two Jobs; minimum number of claims that the first manager creates
	// Nobody leads while the test has the Lease, so that all pods are in the queue before the first claim is created.
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: system},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("the test"), LeaseDurationSeconds: new(int32(3600)), RenewTime: new(metav1.NowMicro())},
	}
	cluster.Create(t, lease)
	first := start(t, "--claim-qps=4", "--claim-burst=1")
	var queue []corev1.Pod
	namespaces := []string{cluster.Namespace(t), cluster.Namespace(t)}
	for _, namespace := range namespaces {
		cluster.Create(t, indexedJob(namespace, "train", replicas))
		queue = append(queue, gated(t, namespace, replicas)...)
	}
	slices.SortFunc(queue, inOrder)
	var want []string
	for _, pod := range queue {
		want = append(want, pod.Namespace+"/"+claim.Name("scratch", claim.Replica(&pod)))
	}

	made := watchClaims(t)
	cluster.Delete(t, lease)
	got := made.next(t, before)
	first.Kill()
	// The Lease of a killed manager is valid for 15 s; this is how an admin shortens that.
	cluster.Delete(t, lease)
	start(t, "--claim-qps=100", "--claim-burst=1")
	got = append(got, made.next(t, 2*replicas-before)...)
	if !slices.Equal(got, want) {
		t.Errorf("claims were made in the order\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, namespace := range namespaces {
		kubetest.Eventually(t, "all gates to be open", func() error {
			if n := len(waiting(pods(t, namespace))); n > 0 {
				return fmt.Errorf("%d pods wait", n)
			}
			return nil
		})
	}
	// If the manager created more claims, they would precede this one.
	last := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaces[0], Name: "last", Labels: map[string]string{claim.LabelVolume: ""}},
		Spec:       scratchVolume(namespaces[0]).Ephemeral.VolumeClaimTemplate.Spec,
	}
	cluster.Create(t, last)
	if rest := made.next(t, 1); rest[0] != namespaces[0]+"/last" {
		t.Errorf("claim %s was made besides", rest[0])
	}
	if n := strings.Count(first.Output.String(), "level=ERROR"); n > 0 {
		t.Errorf("%d errors in the log of the first manager:\n%s", n, first.Output)
	}
}

func inOrder(a, b corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Namespace, b.Namespace), cmp.Compare(index(a), index(b)))
}

func index(pod corev1.Pod) int {
	n := 0
	_, _ = fmt.Sscan(pod.Labels["batch.kubernetes.io/job-completion-index"], &n) // 0 for a pod without the label, which makes the order wrong
	return n
}

// madeClaims are the claims of scratch volumes in the order of their creation.
type madeClaims struct{ events <-chan watch.Event }

// watchClaims watches claims that are created from now on.
func watchClaims(t *testing.T) madeClaims {
	t.Helper()
	set, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	all := set.CoreV1().PersistentVolumeClaims("")
	now, err := all.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := all.Watch(t.Context(), metav1.ListOptions{LabelSelector: claim.LabelVolume, ResourceVersion: now.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return madeClaims{w.ResultChan()}
}

// next waits for the given number of claims and returns them as namespace/name.
func (m madeClaims) next(t *testing.T, number int) []string {
	t.Helper()
	var names []string
	for len(names) < number {
		event := deadline.Receive(t, m.events, fmt.Sprintf("a claim of %d, beside %v", number, names))
		made, ok := event.Object.(*corev1.PersistentVolumeClaim)
		if !ok {
			t.Fatalf("the watch of claims ended: %+v", event)
		}
		switch event.Type {
		case watch.Added:
			names = append(names, made.Namespace+"/"+made.Name)
		case watch.Deleted:
			t.Errorf("claim %s was deleted", made.Name)
		}
	}
	return names
}
