// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// TestSharedCache checks that one DataCache serves TrainJobs of its own namespace and of one that it allows, concurrently, and no
// others, and that its memory is freed after the last one has ended.
func TestSharedCache(t *testing.T) {
	t.Parallel()
	own, allowed, stranger := namespace(t), namespace(t), namespace(t)
	dc := sharedCache(own, reviews.write(t), allowed)
	cluster.Create(t, dc)

	refused := submit(t, stranger, referring("stranger", own, dc.Name)).Refused
	if want := fmt.Sprintf("is not for the namespace %s", stranger); !strings.Contains(refused, want) {
		t.Errorf("a TrainJob of a namespace that isn't allowed reads %q, want %q in it", refused, want)
	}

	long := referring("long", own, dc.Name)
	long.Args["pause"] = 60 // seconds per step: it runs until it is deleted
	endless := train(t, own, long)
	r := train(t, allowed, referring("short", own, dc.Name))
	await(t, "both TrainJobs to use the cache", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			return err
		}
		users := []string{allowed + "/short", own + "/long"}
		slices.Sort(users)
		if !slices.Equal(dc.Status.UsedBy, users) {
			return fmt.Errorf("it is used by %q, want %q", dc.Status.UsedBy, users)
		}
		return nil
	})
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 1, reviews.Rows)
	endless.passes(t, 1, 0)
	cluster.Delete(t, endless.get(t))
	cluster.DataCache(t, own, dc.Name, v1alpha1.StateReleased)
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, own, dc.Name+"-cache")
}

// sharedCache returns a DataCache of the namespace that another namespace may use.
func sharedCache(namespace, metadata, allowed string) *v1alpha1.DataCache {
	ask := func(memory string) v1alpha1.PodSettings {
		return v1alpha1.PodSettings{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse(memory),
		}}}
	}
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "shared"},
		Spec: v1alpha1.DataCacheSpec{
			Arrow: &v1alpha1.ArrowCache{
				MetadataLocation: &metadata, Table: "demo.reviews", DataNodes: 2, Replicas: 1, Head: ask("128Mi"), DataNode: ask("256Mi"),
			},
			Credentials: &v1alpha1.Credentials{SecretRef: corev1.LocalObjectReference{Name: storeSecret}},
			Access:      v1alpha1.Access{Namespaces: v1alpha1.NamespaceAccess{From: v1alpha1.AccessNames, Names: []string{allowed}}},
			Retention:   v1alpha1.Retention{IdleTTL: &metav1.Duration{Duration: 10 * time.Second}},
		},
	}
}

// referring returns a TrainJob that reads an existing DataCache.
func referring(name, namespace, cache string) job {
	return job{
		Name: name, Runtime: "torch-distributed", Initializer: "Arrow", Func: "loader", Image: trainerImage, Nodes: 1,
		Args:    map[string]any{"batch": 1000, "pause": 1.0},
		Dataset: map[string]any{"storage_uri": fmt.Sprintf("datacache://%s/%s", namespace, cache)},
	}
}
