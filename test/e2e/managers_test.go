// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// These tests disable components that all others need; they are not parallel, and so run before the parallel ones.

var managerLabels = client.MatchingLabels{"app.kubernetes.io/name": "datacache-manager"}

// TestManagerRestartsInMidLoad checks that a restarted manager continues with a load in progress and recreates nothing. The object
// store is frozen meanwhile, so that the load can't finish early.
func TestManagerRestartsInMidLoad(t *testing.T) {
	ns := namespace(t)
	metadata := reviews.write(t)
	resume := freezeStore(t)
	r := train(t, ns, cacheJob("loading", metadata, 1, "loader"))
	var before map[string]types.UID
	await(t, "the cache's pods to run", func() error {
		var err error
		before, err = cachePods(t, ns)
		return err
	})

	killManagers(t)
	if state := appears(t, &v1alpha1.DataCache{}, ns, r.name).Status.State; state == v1alpha1.StateReady || state == v1alpha1.StateFailed {
		t.Errorf("with a store that stands still the DataCache is %s", state)
	}

	resume()
	cluster.DataCache(t, ns, r.name, v1alpha1.StateReady)
	after, err := cachePods(t, ns)
	if err != nil {
		t.Error(err)
	}
	for name, uid := range before {
		if after[name] != uid {
			t.Errorf("pod %s was made anew", name)
		}
	}
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 1, reviews.Rows)
}

// killManagers ends all pods of datacache's manager at once, and waits for new ones.
func killManagers(t *testing.T) {
	t.Helper()
	var managers corev1.PodList
	if err := cluster.Client.List(t.Context(), &managers, managerLabels); err != nil {
		t.Fatal(err)
	}
	for _, pod := range managers.Items {
		if err := cluster.Client.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "new managers", func() error {
		for _, old := range managers.Items {
			if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(&old), &corev1.Pod{}); client.IgnoreNotFound(err) != nil || err == nil {
				return fmt.Errorf("pod %s is still there (%w)", old.Name, err)
			}
		}
		return available(t, manager(t))
	})
}

// TestManagerIsDownWhileJobEnds checks that the TrainJob ends while the manager is down, and that the manager frees its cache when it
// is back.
func TestManagerIsDownWhileJobEnds(t *testing.T) {
	ns := namespace(t)
	r := train(t, ns, slowJob(t, "alone"))
	r.passes(t, 2, 5)

	deployment := manager(t)
	replicas := *deployment.Spec.Replicas
	up := func() { scale(t, deployment, replicas) }
	t.Cleanup(up)
	scale(t, deployment, 0)
	await(t, "the managers to be gone", func() error { return nothingRuns(t, deployment.Namespace, managerLabels) })
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 2, wide.Rows)
	appears(t, &lws.LeaderWorkerSet{}, ns, wellknown.CacheName(r.name)) // not freed, since no manager is running

	up()
	cluster.DataCache(t, ns, r.name, v1alpha1.StateReleased)
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, ns, wellknown.CacheName(r.name))
}

// TestAPIServerRestarts restarts the API server during training: the rows must be unaffected, and all managers must recover.
func TestAPIServerRestarts(t *testing.T) {
	ns := namespace(t)
	r := train(t, ns, slowJob(t, "steady"))
	r.passes(t, 2, 5)
	onCluster(t, "restart", "kube-apiserver")
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 2, wide.Rows)
	cluster.DataCache(t, ns, r.name, v1alpha1.StateReleased)
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, ns, wellknown.CacheName(r.name))
}

// manager returns datacache's Deployment, from whichever namespace it was installed in.
func manager(t *testing.T) *appsv1.Deployment {
	t.Helper()
	var all appsv1.DeploymentList
	if err := cluster.Client.List(t.Context(), &all, managerLabels); err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != 1 {
		t.Fatalf("there are %d Deployments with the labels %v, want datacache's manager alone", len(all.Items), managerLabels)
	}
	return &all.Items[0]
}

// available returns an error while not all of a Deployment's pods exist and are ready.
func available(t *testing.T, d *appsv1.Deployment) error {
	t.Helper()
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
		return err
	}
	if d.Status.AvailableReplicas != *d.Spec.Replicas || d.Status.Replicas != *d.Spec.Replicas || d.Status.ObservedGeneration != d.Generation {
		return fmt.Errorf("Deployment %s has %d pods, %d of them available, want %d", d.Name, d.Status.Replicas, d.Status.AvailableReplicas, *d.Spec.Replicas)
	}
	return nil
}

// scale can also be called in the cleanup of a test.
func scale(t *testing.T, d *appsv1.Deployment, replicas int32) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	err := cluster.Client.Patch(context.WithoutCancel(t.Context()), d, client.RawPatch(types.MergePatchType, patch))
	if err != nil {
		t.Fatalf("scaling %s to %d: %v", d.Name, replicas, err)
	}
}

// cachePods returns the pods of the namespace's only cache, by name; it returns an error while they aren't all running.
func cachePods(t *testing.T, namespace string) (map[string]types.UID, error) {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.HasLabels{wellknown.LabelCache}); err != nil {
		return nil, err
	}
	uids := map[string]types.UID{}
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning {
			return nil, fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
		}
		uids[pod.Name] = pod.UID
	}
	if want := 3; len(uids) != want {
		return nil, fmt.Errorf("there are %d pods, want %d", len(uids), want)
	}
	return uids, nil
}

// freezeStore stops the object store's process and returns a function that resumes it, which the end of the test does at the latest.
func freezeStore(t *testing.T) (resume func()) {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(storeNamespace)); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 1 {
		t.Fatalf("the object store has %d pods, want 1", len(pods.Items))
	}
	task(t, &pods.Items[0], "pause")
	resume = sync.OnceFunc(func() { task(t, &pods.Items[0], "resume") })
	t.Cleanup(resume)
	return resume
}
