// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// byHand returns a DataCache as a user would write it.
func byHand(namespace string) *v1alpha1.DataCache {
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "reviews"},
		Spec: v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{
			Table: "demo.reviews", MetadataLocation: new("s3://lake/reviews/metadata/00001.metadata.json"), DataNodes: 2, Replicas: 1,
		}},
	}
}

func memory(text string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(text)}
}

// putsOnly is a cache of what clients put.
func putsOnly() v1alpha1.ArrowCache {
	return v1alpha1.ArrowCache{Puts: &v1alpha1.Puts{Enabled: true}, DataNodes: 2, Replicas: 1}
}

func spillOf(limit string) *v1alpha1.Spill { return &v1alpha1.Spill{Limit: resource.MustParse(limit)} }

// TestDataCacheValidation checks that the API server rejects invalid specs, and accepts a partial pod template.
func TestDataCacheValidation(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for name, c := range map[string]struct {
		edit func(*v1alpha1.DataCache)
		want string // "": it is accepted
	}{
		"as it is": {func(*v1alpha1.DataCache) {}, ""},
		"a part of a pod": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Head.Template = &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{SchedulerName: "x"}}
		}, ""},
		"no engine": {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow = nil }, "exactly one engine must be set"},
		"an account": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Head.Template = &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{ServiceAccountName: "x"}}
		}, "serviceAccountName can't be set"},
		"requests > limits": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.DataNode.Resources = corev1.ResourceRequirements{Requests: memory("8Gi"), Limits: memory("4Gi")}
		}, "requests must not be above limits"},
		"names without from": {func(dc *v1alpha1.DataCache) { dc.Spec.Access.Namespaces.Names = []string{"a"} }, "names must be set with from: Names"},
		"a wrong snapshot":   {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{ID: new("007")} }, "should match"},
		"a large snapshot": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{ID: new("9223372036854775807")}
		}, ""},
		"a wrong time": {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{AsOf: new("yesterday")} }, "date-time"},
		"two sources":  {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Source = folder("s3://b/t/") }, "exactly one of metadataLocation, catalog and source"},
		"no table":     {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Table = "" }, "table must be set, unless source is"},
		"files": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Table, dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Source = "", nil, folder("s3://b/t/")
		}, ""},
		"files and a table": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Source = nil, folder("s3://b/t/")
		}, "table must be set, unless source is"},
		"a source of nothing": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Table, dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Source = "", nil, &v1alpha1.Source{}
		}, "exactly one of files and delta"},
		"files at a snapshot": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Table, dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Source = "", nil, folder("s3://b/t/")
			dc.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{ID: new("7")}
		}, "plain files have no snapshots"},
		"a version of a Delta table": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Table, dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Source = "", nil, deltaTable("s3://b/t")
			dc.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{ID: new("0")}
		}, ""},
		"a branch of a Delta table": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Table, dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Source = "", nil, deltaTable("s3://b/t")
			dc.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{Ref: new("main")}
		}, "Delta tables have no branches"},
		"files and a Delta table": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Table, dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Source = "", nil, deltaTable("s3://b/t")
			dc.Spec.Arrow.Source.Files = folder("s3://b/t/").Files
		}, "exactly one of files and delta"},
		"shared": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Sharing = v1alpha1.Sharing{Weights: map[string]int32{"team-a/train": 3}, MaxJobs: 9, MaxStreamsPerJob: 64}
		}, ""},
		"a weight of nothing":  {func(dc *v1alpha1.DataCache) { dc.Spec.Sharing.Weights = map[string]int32{"a": 0} }, "weights must be from 1 to 1000"},
		"a weight for nobody":  {func(dc *v1alpha1.DataCache) { dc.Spec.Sharing.Weights = map[string]int32{"": 1} }, "names of 1 to 63 characters"},
		"fewer than no jobs":   {func(dc *v1alpha1.DataCache) { dc.Spec.Sharing.MaxJobs = -1 }, "greater than or equal to 0"},
		"rows on disk":         {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Spill = spillOf("200Gi") }, ""},
		"too few rows on disk": {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Spill = spillOf("200") }, "limit must be at least 16Mi"},
		"rows on two disks": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Spill = spillOf("200Gi")
			dc.Spec.Arrow.Spill.Ephemeral, dc.Spec.Arrow.Spill.HostPath = &v1alpha1.SpillClaim{}, &v1alpha1.SpillFolder{Path: "/mnt"}
		}, "ephemeral and hostPath exclude each other"},
		"rows above a folder": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Spill = spillOf("200Gi")
			dc.Spec.Arrow.Spill.HostPath = &v1alpha1.SpillFolder{Path: "/mnt/../etc"}
		}, "path must be absolute, without .."},
		"what clients put":             {func(dc *v1alpha1.DataCache) { *dc.Spec.Arrow = putsOnly() }, ""},
		"a table and what clients put": {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Puts = &v1alpha1.Puts{Enabled: true} }, ""},
		"nothing, and nobody may put":  {func(dc *v1alpha1.DataCache) { *dc.Spec.Arrow = putsOnly(); dc.Spec.Arrow.Puts.Enabled = false }, "exactly one of metadataLocation, catalog and source"},
		"columns of what clients put":  {func(dc *v1alpha1.DataCache) { *dc.Spec.Arrow = putsOnly(); dc.Spec.Arrow.Columns = []string{"a"} }, "has no table to select from"},
		"files without spill":          {func(dc *v1alpha1.DataCache) { *dc.Spec.Arrow = putsOnly(); dc.Spec.Arrow.Puts.Keep = v1alpha1.KeepDisk }, "puts.keep: Disk needs files: set spill"},
		"copies on one data node": {func(dc *v1alpha1.DataCache) {
			*dc.Spec.Arrow = putsOnly()
			dc.Spec.Arrow.DataNodes, dc.Spec.Arrow.Puts.Keep = 1, v1alpha1.KeepReplica
		}, "puts.keep: Replica needs two data nodes"},
		"a limit of a few bytes": {func(dc *v1alpha1.DataCache) {
			*dc.Spec.Arrow = putsOnly()
			dc.Spec.Arrow.Puts.Limit = new(resource.MustParse("16"))
		}, "limit must be at least 16Mi"},
		"a limit of a writer": {func(dc *v1alpha1.DataCache) {
			*dc.Spec.Arrow = putsOnly()
			dc.Spec.Arrow.Puts.LimitPerWriter = new(resource.MustParse("4Gi"))
		}, ""},
		"a limit of a writer of a few bytes": {func(dc *v1alpha1.DataCache) {
			*dc.Spec.Arrow = putsOnly()
			dc.Spec.Arrow.Puts.LimitPerWriter = new(resource.MustParse("16"))
		}, "limitPerWriter must be at least 16Mi"},
		"writers": {func(dc *v1alpha1.DataCache) {
			*dc.Spec.Arrow = putsOnly()
			dc.Spec.Arrow.Puts.Writers = []string{"a/*", "b/x.y"}
		}, ""},
		"a writer of no namespace": {func(dc *v1alpha1.DataCache) {
			*dc.Spec.Arrow = putsOnly()
			dc.Spec.Arrow.Puts.Writers = []string{"etl"}
		}, "writers"},
		"a step": {func(dc *v1alpha1.DataCache) {
			*dc.Spec.Arrow = putsOnly()
			dc.Spec.Arrow.Derive = &v1alpha1.Derive{Dataset: "tok", Image: "tok:1"}
		}, ""},
		"a step, and nobody may put":   {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Derive = &v1alpha1.Derive{Dataset: "tok", Image: "tok:1"} }, "derive puts a dataset: set puts.enabled"},
		"a table's name, and no table": {func(dc *v1alpha1.DataCache) { *dc.Spec.Arrow = putsOnly(); dc.Spec.Arrow.Table = "demo.reviews" }, "table must be set, unless source is or puts.enabled"},
		"a catalog to commit to": {func(dc *v1alpha1.DataCache) {
			*dc.Spec.Arrow = putsOnly()
			dc.Spec.Arrow.Catalog = &v1alpha1.Catalog{URI: "https://c"}
		}, ""},
		"columns of a catalog": {func(dc *v1alpha1.DataCache) {
			*dc.Spec.Arrow = putsOnly()
			dc.Spec.Arrow.Catalog, dc.Spec.Arrow.Columns = &v1alpha1.Catalog{URI: "https://c"}, []string{"a"}
		}, "has no table to select from"},
		"two copies of what clients put": {func(dc *v1alpha1.DataCache) { *dc.Spec.Arrow = putsOnly(); dc.Spec.Arrow.Replicas = 2 }, "puts.enabled needs replicas: 1"},
		"half a second": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{AsOf: new("2026-01-01T00:00:00.5Z")}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc := byHand(ns)
			c.edit(dc)
			err := cluster.Client.Create(t.Context(), dc, client.DryRunAll)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("the API server answers %v, want %q", err, c.want)
			}
		})
	}
}

// TestMemoryIsRaised checks that changed resources reach the pods, which are recreated, and that observedGeneration shows it.
func TestMemoryIsRaised(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	dc := byHand(ns)
	cluster.Create(t, dc)
	cachePods(t, ns, 3)
	change(t, dc, func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.DataNode.Resources.Limits = memory("64Gi") })
	kubetest.Eventually(t, "data nodes with 64Gi, told by observedGeneration", func() error {
		var pods corev1.PodList
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(ns), client.MatchingLabels{"datacache.kubeflow.org/role": "node"}); err != nil {
			return err
		}
		raised := 0
		for _, pod := range pods.Items {
			if pod.Spec.Containers[0].Resources.Limits.Memory().String() == "64Gi" {
				raised++
			}
		}
		now := &v1alpha1.DataCache{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), now); err != nil {
			return err
		}
		if raised != 2 || now.Status.ObservedGeneration != now.Generation {
			return fmt.Errorf("%d of %d have it, generation %d, observed %d", raised, len(pods.Items), now.Generation, now.Status.ObservedGeneration)
		}
		return nil
	})
}

// TestOrphanedCacheGoes checks that the pods of a DataCache that was deleted with orphaned dependents are removed.
func TestOrphanedCacheGoes(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	dc := byHand(ns)
	cluster.Create(t, dc)
	cachePods(t, ns, 3)
	if err := cluster.Client.Delete(t.Context(), dc, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		t.Fatal(err)
	}
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, ns, "reviews-cache")
	noCachePods(t, ns)
}
