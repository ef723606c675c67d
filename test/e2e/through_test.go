// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// secondLoad loads a table into two caches, one after the other, each with a TrainJob that reads every row. The second must read the
// table's bytes from the object cache. On a busy machine a block may not have been stored there in time, which is acceptable: then a
// later cache must.
func secondLoad(t *testing.T, namespace string) {
	t.Helper()
	fresh := reviews
	fresh.Name = strings.ReplaceAll(namespace, "-", "_") // not in any object cache yet
	first := loadThrough(t, namespace, "load-0", fresh)
	if first.read < float64(reviews.Rows) { // a byte per row is a lower bound
		t.Fatalf("the first load read %.0f bytes from the bucket, which can't be all", first.read)
	}
	for i := range 5 {
		again := loadThrough(t, namespace, fmt.Sprintf("load-%d", i+1), fresh)
		if again.read < 0.01*first.read && again.cached >= first.read/2 {
			return
		}
	}
	t.Error("the bucket is read again and again")
}

// traffic is the bytes that a cache read to load its table.
type traffic struct{ read, cached float64 }

// loadThrough creates a cache that reads the table through the object cache, trains from it, deletes it, and returns where its bytes
// came from.
func loadThrough(t *testing.T, namespace, name string, from table) traffic {
	t.Helper()
	dc := sharedCache(namespace, from.write(t), namespace)
	dc.Name = name
	dc.Spec.Arrow.Table = "demo." + from.Name
	dc.Spec.Retention.IdleTTL = nil // it must outlive its user
	dc.Spec.Arrow.ObjectCache = &v1alpha1.ObjectCache{Bucket: "tables"}
	cluster.Create(t, dc)
	j := referring(name, namespace, name)
	j.Args["pause"] = 0
	r := train(t, namespace, j)
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 1, from.Rows)
	uids, err := cachePods(t, namespace)
	if err != nil {
		t.Fatal(err)
	}
	pods := slices.Collect(maps.Keys(uids))
	got := traffic{
		podMetric(t, namespace, pods, "datacache_load_read_bytes_total"), podMetric(t, namespace, pods, "datacache_load_cached_bytes_total"),
	}
	t.Logf("%s: %.0f bytes from the bucket, %.0f from the object cache", name, got.read, got.cached)
	cluster.Delete(t, r.get(t))
	cluster.Delete(t, dc)
	await(t, "the cache's pods to go", func() error { return nothingRuns(t, namespace, client.HasLabels{wellknown.LabelCache}) })
	return got
}
