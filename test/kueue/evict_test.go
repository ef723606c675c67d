// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/diagnose"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const (
	queue      = "training"
	queueLabel = "kueue.x-k8s.io/queue-name"
)

// TestEviction: the training pods of a TrainJob wait for its cache, so that Kueue's waitForPodsReady evicts the TrainJob while the cache
// loads, and admits it again. Within its suspendGrace the cache keeps its pods. Without one it gets new pods.
func TestEviction(t *testing.T) {
	install(t)
	tests := map[string]struct {
		grace string // "": the default
		keeps bool   // whether the cache keeps its pods
	}{
		"within the grace": {keeps: true},
		"without a grace":  {grace: "0s"},
	}
	t.Run("a queue without a quota", func(t *testing.T) {
		t.Parallel()
		saysKueue(t)
	})
	t.Run("a TrainJob without a cache, where others wait for theirs", func(t *testing.T) {
		t.Parallel()
		ns := cluster.Namespace(t)
		makeQueue(t, ns, "1k", map[string]any{"name": "datacache"})
		job := cacheJob(ns, "")
		job.Spec.Initializer = nil
		cluster.Create(t, job)
		cluster.Become(t, job, ns, job.Name, "admitted", func() error {
			if ptr.Deref(job.Spec.Suspend, false) {
				return errors.New("it is suspended")
			}
			return nil
		})
	})
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := newQueue(t)
			job := cacheJob(ns, tt.grace)
			cluster.Create(t, job)
			loading := cachePods(t, ns, nil)
			requeued(t, ns, job, 1)
			if !tt.keeps {
				cachePods(t, ns, loading)
				return
			}
			requeued(t, ns, job, 2)
			if now := running(t, ns); !maps.Equal(now, loading) {
				t.Errorf("the cache's pods are %v, and were %v before the TrainJob was evicted", now, loading)
			}
		})
	}
}

// saysKueue checks that the diagnosis of a TrainJob that Kueue does not admit has Kueue's message, and that the TrainJob's event has it too.
func saysKueue(t *testing.T) {
	t.Helper()
	ns := cluster.Namespace(t)
	cluster.Create(t, object("LocalQueue", ns, queue, map[string]any{"clusterQueue": "no-such-queue"}))
	job := cacheJob(ns, "")
	cluster.Create(t, job)
	kubetest.Eventually(t, "the diagnosis", func() error {
		findings, err := diagnose.Why(t.Context(), cluster.Client, nil, client.ObjectKeyFromObject(job))
		if err != nil {
			return err
		}
		if cause := diagnose.Cause(findings); cause == nil || !strings.Contains(cause.String(), "suspended: Kueue: ClusterQueue no-such-queue doesn't exist") {
			return fmt.Errorf("it is %v", cause)
		}
		return nil
	})
	kubetest.Eventually(t, "the event", func() error {
		var events corev1.EventList
		if err := cluster.Client.List(t.Context(), &events, client.InNamespace(ns)); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "CacheUserWaits" && e.InvolvedObject.UID == job.UID && strings.Contains(e.Message, "suspended: Kueue: ClusterQueue no-such-queue doesn't exist")
		}) {
			return errors.New("there is none")
		}
		return nil
	})
}

// newQueue creates a namespace and a queue whose quota is large enough for everything in it.
func newQueue(t *testing.T) (namespace string) {
	t.Helper()
	namespace = cluster.Namespace(t)
	makeQueue(t, namespace, "1k")
	return namespace
}

// makeQueue creates a queue with a quota of cpu, in which workloads wait for the AdmissionChecks.
func makeQueue(t *testing.T, namespace, cpu string, checks ...any) {
	t.Helper()
	flavor := object("ResourceFlavor", "", namespace, nil)
	quota := map[string]any{"name": "cpu", "nominalQuota": cpu}
	memory := map[string]any{"name": "memory", "nominalQuota": "1Ti"}
	spec := map[string]any{
		"namespaceSelector": map[string]any{"matchLabels": map[string]any{corev1.LabelMetadataName: namespace}},
		"resourceGroups": []any{map[string]any{
			"coveredResources": []any{"cpu", "memory"},
			"flavors":          []any{map[string]any{"name": namespace, "resources": []any{quota, memory}}},
		}},
	}
	if len(checks) > 0 {
		spec["admissionChecksStrategy"] = map[string]any{"admissionChecks": checks}
	}
	cluster.Create(t, flavor)
	cluster.Create(t, object("ClusterQueue", "", namespace, spec))
	cluster.Create(t, object("LocalQueue", namespace, queue, map[string]any{"clusterQueue": namespace}))
}

func object(kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind}}
	o.SetNamespace(namespace)
	o.SetName(name)
	if spec != nil {
		o.Object["spec"] = spec
	}
	return o
}

// cacheJob returns a TrainJob in the queue. Its cache never becomes ready, because no server runs in its pods.
func cacheJob(namespace, grace string) *trainer.TrainJob {
	env := []corev1.EnvVar{{Name: "METADATA_LOC", Value: "s3://lake/reviews/metadata/00001.metadata.json"}, {Name: "CLUSTER_SIZE", Value: "3"}}
	if grace != "" {
		env = append(env, corev1.EnvVar{Name: "SUSPEND_GRACE", Value: grace})
	}
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "train", Labels: map[string]string{queueLabel: queue}},
		Spec: trainer.TrainJobSpec{
			RuntimeRef:  trainer.RuntimeRef{Name: runtime},
			Trainer:     &trainer.Trainer{NumNodes: new(int32(1))},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{StorageUri: new("cache://demo/reviews"), Env: env}},
		},
	}
}

// age has a Workload be in its state for longer than Kueue gives pods to become ready.
func age(t *testing.T, workload *unstructured.Unstructured) error {
	t.Helper()
	conditions, _, err := unstructured.NestedSlice(workload.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, condition := range conditions {
		condition.(map[string]any)["lastTransitionTime"] = time.Now().Add(-2 * podsTime).UTC().Format(time.RFC3339)
	}
	return errors.Join(unstructured.SetNestedSlice(workload.Object, conditions, "status", "conditions"), cluster.Client.Status().Update(t.Context(), workload))
}

// requeued ages the TrainJob's Workload until Kueue has evicted it so many times, and waits until it is admitted again.
func requeued(t *testing.T, namespace string, job *trainer.TrainJob, times int64) {
	t.Helper()
	kubetest.Eventually(t, fmt.Sprintf("Kueue to have evicted the TrainJob %d times", times), func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		workload, err := workloadOf(t, namespace, job)
		if err != nil {
			return err
		}
		evictions, _, err := unstructured.NestedInt64(workload.Object, "status", "requeueState", "count")
		if err != nil {
			return err
		}
		if evictions < times {
			return cmp.Or(age(t, workload), fmt.Errorf("%d evictions", evictions))
		}
		if ptr.Deref(job.Spec.Suspend, false) {
			return fmt.Errorf("it is suspended after %d evictions: %v", evictions, workload.Object["status"])
		}
		return nil
	})
}

// workloadOf returns the Workload that Kueue created for the TrainJob.
func workloadOf(t *testing.T, namespace string, job *trainer.TrainJob) (*unstructured.Unstructured, error) {
	t.Helper()
	workloads, err := workloadsIn(t, namespace)
	if err != nil {
		return nil, err
	}
	for i := range workloads {
		if owned := workloads[i].GetOwnerReferences(); len(owned) == 1 && owned[0].UID == job.UID {
			return &workloads[i], nil
		}
	}
	return nil, fmt.Errorf("Kueue has no workload for it among %d", len(workloads))
}

// workloadsIn returns Kueue's Workloads in a namespace.
func workloadsIn(t *testing.T, namespace string) ([]unstructured.Unstructured, error) {
	t.Helper()
	var workloads unstructured.UnstructuredList
	workloads.SetGroupVersionKind(object("WorkloadList", "", "", nil).GroupVersionKind())
	err := cluster.Client.List(t.Context(), &workloads, client.InNamespace(namespace))
	return workloads.Items, err
}

// running returns the UIDs of the running pods of the cache, by pod name.
func running(t *testing.T, namespace string) map[string]types.UID {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.HasLabels{"leaderworkerset.sigs.k8s.io/name"}); err != nil {
		t.Fatal(err)
	}
	found := map[string]types.UID{}
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			found[pod.Name] = pod.UID
		}
	}
	return found
}

// cachePods waits until a head and two data nodes run, none of which is in before.
func cachePods(t *testing.T, namespace string, before map[string]types.UID) map[string]types.UID {
	t.Helper()
	old := slices.Collect(maps.Values(before))
	var found map[string]types.UID
	kubetest.Eventually(t, "the pods of cache "+wellknown.CacheName("train"), func() error {
		found = running(t, namespace)
		for name, uid := range found {
			if slices.Contains(old, uid) {
				return fmt.Errorf("%s still runs", name)
			}
		}
		if len(found) != 3 {
			return fmt.Errorf("%d of 3 run: %v", len(found), found)
		}
		return nil
	})
	return found
}
