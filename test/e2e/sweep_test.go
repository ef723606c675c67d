// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// trials is the number of TrainJobs of a hyperparameter sweep, as Katib creates them: they differ in their parameters and request the
// same rows.
const trials = 8

// TestSweep checks that all trials of a sweep read from the same pods, which read the table from the store once.
func TestSweep(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	first := train(t, ns, trial(t, 0))
	var uids map[string]types.UID
	await(t, "the cache's pods to run", func() (err error) { uids, err = cachePods(t, ns); return err })
	var caches v1alpha1.DataCacheList
	if err := cluster.Client.List(t.Context(), &caches, client.InNamespace(ns)); err != nil || len(caches.Items) != 1 {
		t.Fatalf("there are %d DataCaches (%v), want 1", len(caches.Items), err)
	}
	cluster.DataCache(t, ns, caches.Items[0].Name, v1alpha1.StateReady)
	pods := slices.Sorted(maps.Keys(uids))
	read := podMetric(t, ns, pods, "datacache_load_read_bytes_total")
	if read < float64(reviews.Rows) { // a byte per row is a lower bound
		t.Fatalf("the load read %.0f bytes, which can't be all", read)
	}

	runs := []*run{first}
	for i := 1; i < trials; i++ {
		runs = append(runs, train(t, ns, trial(t, i)))
	}
	for _, r := range runs {
		r.ends(t, trainer.TrainJobComplete)
		readOnce(t, r, r.look(t), 1, reviews.Rows)
	}
	after, err := cachePods(t, ns)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(uids, after) {
		t.Errorf("the sweep began with the pods %v and ended with %v", uids, after)
	}
	if now := podMetric(t, ns, pods, "datacache_load_read_bytes_total"); now != read {
		t.Errorf("%d trials read %.0f bytes from the store, the first alone %.0f", trials, now, read)
	}
	t.Logf("%d trials read %.0f bytes from the store", trials, read)
}

// trial returns the i-th TrainJob of a sweep.
func trial(t *testing.T, i int) job {
	t.Helper()
	j := cacheJob(fmt.Sprintf("trial-%d", i), reviews.write(t), 1, "loader")
	j.Initializer = "Arrow"
	j.Dataset = map[string]any{
		"cluster_size": 3, "metadata_loc": reviews.write(t), "schema_name": "demo", "table_name": "reviews", "cache_scope": "namespace",
		"head_cpu": "50m", "head_mem": "128Mi", "worker_cpu": "50m", "worker_mem": "256Mi",
	}
	j.Args = map[string]any{"batch": 1000, "seed": i}
	return j
}
