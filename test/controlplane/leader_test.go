// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestAnotherManagerTakesOver stops the leading manager. The other one, which only served the webhook and the page of caches until then,
// gives the next TrainJob its cache, and frees the one that the first manager created. The test is not parallel, since there is only one leader to
// stop.
func TestAnotherManagerTakesOver(t *testing.T) {
	select {
	case <-leader.stopped: // by this test, which runs again in this process
		if err := errors.Join(other.stop(), leadAndFollow(context.WithoutCancel(t.Context()), cluster)); err != nil {
			t.Fatal(err)
		}
	default:
	}
	runtimes(t)
	ns := cluster.Namespace(t)
	served(t, ns, "before", "after")
	before := cacheJob(ns, "before", "cache://demo/reviews", tableEnv()...)
	cluster.Create(t, before)
	all(t, ns, 1, v1alpha1.StateReady)
	exported(t, leader, ns, "before")
	if n, err := testutil.GatherAndCount(other.metrics, "datacache_cache_info", "datacache_caches"); err != nil || n != 0 {
		t.Errorf("the manager that does not lead exports %d series of DataCaches (%v), want none: sums would count each cache twice", n, err)
	}
	allow(t, "", ns, "anybody")
	visit(t, webhookPort).as(t, ns, "anybody").sees(t, kubetest.Deadline, "", []string{ns}, ns)
	if err := leader.stop(); err != nil {
		t.Fatalf("the leader ended with %v", err)
	}
	cluster.Create(t, cacheJob(ns, "after", "cache://demo/reviews", tableEnv()...))
	all(t, ns, 2, v1alpha1.StateReady)
	if err := cluster.Client.Delete(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	all(t, ns, 1, v1alpha1.StateReady)
	exported(t, other, ns, "after")
}

// exported waits until the manager exports a Ready DataCache as the only one of its namespace: its informer may lag behind.
func exported(t *testing.T, manager *running, namespace, name string) {
	t.Helper()
	kubetest.Eventually(t, "metrics of "+name, func() error {
		dc := cluster.DataCache(t, namespace, name, v1alpha1.StateReady)
		families, err := manager.metrics.Gather()
		if err != nil {
			return err
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, series := range family.GetMetric() {
				labels := map[string]string{}
				for _, label := range series.GetLabel() {
					labels[label.GetName()] = label.GetValue()
				}
				if labels["namespace"] == namespace {
					got[family.GetName()+" "+labels["name"]+" "+labels["state"]] = series.GetGauge().GetValue()
				}
			}
		}
		want := map[string]float64{
			"datacache_cache_info " + name + " Ready": 1, "datacache_cache_loaded_ratio " + name + " ": 1,
			"datacache_cache_bytes " + name + " ": float64(*dc.Status.Bytes), "datacache_cache_users " + name + " ": float64(dc.Status.Users),
			"datacache_cache_ready_timestamp_seconds " + name + " ": float64(dc.Status.ReadyTime.Unix()), "datacache_cache_degraded_total " + name + " ": 0,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}
