// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestTwoCopies checks that both heads of a cache with two copies serve the same rows of the same snapshot, although the catalog has
// another one since the first head loaded the table. In the middle of an epoch one head's container is killed, and then the other's pod is deleted together with its data node: training must still get each row
// exactly once.
func TestTwoCopies(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	dc := sharedCache(ns, "", ns)
	dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Catalog = nil, &v1alpha1.Catalog{URI: wide.moving(t)}
	dc.Spec.Arrow.Replicas, dc.Spec.Arrow.DataNodes = 2, 1
	dc.Spec.Arrow.DataNode.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("512Mi")
	dc.Spec.Retention.IdleTTL = nil // it must be kept while it has no user yet
	cluster.Create(t, dc)
	cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReady)
	bothHeads(t, ns, dc.Name)
	j := referring("through", ns, dc.Name)
	j.Nodes, j.Args = 2, map[string]any{"batch": 100, "pause": 0.3, "ahead": 2 << 20}
	r := train(t, ns, j)
	r.passes(t, 2, 10)

	head := appears(t, &corev1.Pod{}, ns, dc.Name+"-cache-0")
	killContainer(t, head)
	await(t, "the killed head to be ready again", func() error { return restarted(t, ns, head.Name) })
	other := appears(t, &corev1.Pod{}, ns, dc.Name+"-cache-1")
	if err := cluster.Client.Delete(t.Context(), other, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	for rank := range 2 {
		lines, err := r.now(t, rank)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(lines, func(l outputLine) bool { return l.Rows > 0 }) {
			t.Errorf("rank %d was through with its epoch before both heads were hit", rank)
		}
	}
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 2, wide.Rows)
	cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReady)
	bothHeads(t, ns, dc.Name)
}

// bothHeads checks that two heads have all rows of the same snapshot.
func bothHeads(t *testing.T, namespace, cache string) {
	t.Helper()
	var snapshots []int64
	for copied := range 2 {
		text, err := podPage(t, namespace, fmt.Sprintf("%s-%d", wellknown.CacheName(cache), copied), "status")
		if err != nil {
			t.Fatal(err)
		}
		var s struct {
			State    string
			Snapshot int64
			Rows     int
		}
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatalf("/status is %q: %v", text, err)
		}
		if s.State != string(v1alpha1.StateReady) || s.Rows != wide.Rows || s.Snapshot == 0 {
			t.Errorf("head %d is %s with %d rows of snapshot %d, want Ready with %d", copied, s.State, s.Rows, s.Snapshot, wide.Rows)
		}
		snapshots = append(snapshots, s.Snapshot)
	}
	if snapshots[0] != snapshots[1] {
		t.Errorf("the heads serve the snapshots %v", snapshots)
	}
}

// restarted returns an error until the pod's container has been restarted and is ready.
func restarted(t *testing.T, namespace, name string) error {
	t.Helper()
	pod := &corev1.Pod{}
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, pod); err != nil {
		return err
	}
	if c := pod.Status.ContainerStatuses; len(c) == 0 || c[0].RestartCount == 0 || !c[0].Ready {
		return fmt.Errorf("its containers are %+v", c)
	}
	return nil
}

// TestTaintedNode checks that, if a runtime's step has a nodeSelector and tolerations, the caches of its TrainJobs run on such a
// node, which is tainted, and training pods do not. It is not parallel, since other tests' pods need that node too.
func TestTaintedNode(t *testing.T) {
	ns := namespace(t)
	onCluster(t, "status")
	twin := appears(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName("torch-distributed"))
	own := &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: withCache, Labels: twin.Labels}, Spec: twin.Spec}
	step := &own.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
	step.NodeSelector = map[string]string{corev1.LabelHostname: "n2"}
	step.Tolerations = []corev1.Toleration{{Key: "pool", Value: "cache", Effect: corev1.TaintEffectNoSchedule}}
	cluster.Create(t, own)
	editNode(t, "n2", `{"spec":{"taints":[{"key":"pool","value":"cache","effect":"NoSchedule"}]}}`, `{"spec":{"taints":null}}`)
	j := small(t)
	j.Runtime = withCache
	r := train(t, ns, j)
	await(t, "the cache and training to have nodes", func() error { return checkNodes(t, ns) })
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 1, reviews.Rows)
}

// checkNodes returns an error until the namespace has a complete cache on n2, and training on n1.
func checkNodes(t *testing.T, namespace string) error {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace)); err != nil {
		return err
	}
	nodes := map[string][]string{}
	for _, pod := range pods.Items {
		what := "training"
		if pod.Labels[wellknown.LabelRole] != "" {
			what = "cache"
		} else if pod.Labels["jobset.sigs.k8s.io/replicatedjob-name"] == wellknown.StepName {
			what = "step"
		}
		nodes[what] = append(nodes[what], pod.Spec.NodeName)
	}
	if !slices.Equal(nodes["cache"], []string{"n2", "n2", "n2"}) || !slices.Equal(nodes["training"], []string{"n1"}) {
		return errors.New(fmt.Sprint("pods are on ", nodes))
	}
	return nil
}
