// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestSuspendResumeFinish checks that a TrainJob's cache is freed when it is suspended, and runs again with the same snapshot when it
// is resumed.
func TestSuspendResumeFinish(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	before := objects(t, ns)
	r := train(t, ns, slowJob(t, "pausing"))
	r.passes(t, 2, 5)
	pinned := cluster.DataCache(t, ns, r.name, v1alpha1.StateReady).Status.Snapshot

	dc := cluster.DataCache(t, ns, r.name, v1alpha1.StateReady)
	unedited := dc.DeepCopy()
	dc.Spec.Retention.SuspendGrace = &metav1.Duration{}
	if err := cluster.Client.Patch(t.Context(), dc, client.MergeFrom(unedited)); err != nil {
		t.Fatal(err)
	}
	r.suspend(t, true)
	cluster.DataCache(t, ns, r.name, v1alpha1.StateReleased)
	await(t, "the cache's memory to go", func() error { return nothingRuns(t, ns, client.HasLabels{wellknown.LabelCache}) })
	await(t, "the training to end", func() error { return nothingRuns(t, ns) })

	r.suspend(t, false)
	again := cluster.DataCache(t, ns, r.name, v1alpha1.StateReady).Status.Snapshot
	if pinned == "" || again != pinned {
		t.Errorf("the TrainJob came back to snapshot %q, it had %q", again, pinned)
	}
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 2, wide.Rows)
	await(t, "the cache's memory to go", func() error { return nothingRuns(t, ns) })

	cluster.Delete(t, r.get(t))
	nothingNew(t, ns, before)
}

// TestDeleteInMidTraining checks what kubectl datacache says of a TrainJob that trains, and that nothing of it remains in the namespace when
// it is deleted.
func TestDeleteInMidTraining(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	before := objects(t, ns)
	plugin := buildPlugin(t)
	j := slowJob(t, "unwanted")
	j.Args["pause"] = 0.5 // it has 100 s until it is deleted
	r := train(t, ns, j)
	r.passes(t, 2, 5)
	kubectlSays(t, plugin, r)
	cluster.Delete(t, r.get(t))
	nothingNew(t, ns, before)
}

func (r *run) suspend(t *testing.T, suspend bool) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, suspend)
	if err := cluster.Client.Patch(t.Context(), r.get(t), client.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
}

// nothingRuns returns an error while the namespace has such pods that have not ended.
func nothingRuns(t *testing.T, namespace string, options ...client.ListOption) error {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, append(options, client.InNamespace(namespace))...); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
		}
	}
	return nil
}

// nothingNew waits until the namespace has only the objects in before.
func nothingNew(t *testing.T, namespace string, before []string) {
	t.Helper()
	await(t, "nothing to be left in the namespace", func() error {
		if diff := cmp.Diff(before, objects(t, namespace)); diff != "" {
			return fmt.Errorf("objects (-before +now):\n%s", diff)
		}
		return nil
	})
}

// objects lists all objects of the namespace, of every kind in the cluster, as kind/name. It omits objects that Kubernetes itself
// creates in each namespace, at any time, and events, which expire.
func objects(t *testing.T, namespace string) []string {
	t.Helper()
	known, err := cluster.logs.Discovery().ServerPreferredNamespacedResources()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, group := range known {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range group.APIResources {
			if resource.Kind == "Event" || !slices.Contains(resource.Verbs, "list") {
				continue
			}
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(version.WithKind(resource.Kind + "List"))
			if err := cluster.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
				t.Fatalf("listing %s: %v", resource.Name, err)
			}
			for _, object := range list.Items {
				names = append(names, strings.ToLower(resource.Kind)+"/"+object.Name)
			}
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return name == "configmap/kube-root-ca.crt" || name == "serviceaccount/default"
	})
	slices.Sort(names)
	return names
}
