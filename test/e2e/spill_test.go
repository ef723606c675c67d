// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// long is a table larger than the memory of the data node of TestSpillOnAClaim, which may use 112 MiB of its 192.
var long = table{Name: "reviews", Rows: 40_000, Files: 16, Width: 4_000}

// TestSpillOnAClaim trains on a table that is larger than the memory of its data node, from an ephemeral claim. During training the data node's
// pod is deleted: the next one has an empty claim, loads all rows again, and training gets each row exactly once.
func TestSpillOnAClaim(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	needsLocalPath(t)
	dc := sharedCache(ns, long.write(t), ns)
	dc.Spec.Retention.IdleTTL = nil // it has no user yet
	arrow := dc.Spec.Arrow
	arrow.DataNodes, arrow.DataNode.Resources.Requests[corev1.ResourceMemory] = 1, resource.MustParse("192Mi")
	arrow.Spill = &v1alpha1.Spill{Limit: resource.MustParse("1Gi"), Ephemeral: &v1alpha1.SpillClaim{StorageClassName: new("local-path")}}
	cluster.Create(t, dc)
	cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReady)
	liesOnDisk(t, ns)

	j := referring("through", ns, dc.Name)
	j.Nodes, j.Args = 2, slowArgs()
	r := train(t, ns, j)
	r.passes(t, 2, 10)
	const node, claim = "shared-cache-0-1", "shared-cache-0-1-spill"
	before := appears(t, &corev1.PersistentVolumeClaim{}, ns, claim)
	began := time.Now()
	if err := cluster.Client.Delete(t.Context(), appears(t, &corev1.Pod{}, ns, node), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	isBack(t, ns, dc.Name, began)
	if after := appears(t, &corev1.PersistentVolumeClaim{}, ns, claim); after.UID == before.UID {
		t.Error("the next pod has the claim of the one that was deleted")
	}
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 2, long.Rows)

	volumes := volumesOf(t, ns, 1, appears(t, &corev1.Pod{}, ns, node))
	cluster.Delete(t, dc)
	nothingIsLeft(t, ns, volumes)
}

// liesOnDisk checks that the rows are in files, and that these are larger than what is in memory of them.
func liesOnDisk(t *testing.T, namespace string) {
	t.Helper()
	await(t, "the head to know what is on disk", func() error {
		text, err := podPage(t, namespace, "shared-cache-0", "status")
		if err != nil {
			return err
		}
		var s struct {
			Nodes []struct {
				Memory struct{ Limit int64 }
				Spill  struct{ Bytes, Resident int64 }
			}
		}
		if err := json.Unmarshal(text, &s); err != nil || len(s.Nodes) != 1 {
			return fmt.Errorf("it says %s: %w", text, err)
		}
		if n := s.Nodes[0]; n.Spill.Bytes <= n.Memory.Limit || n.Spill.Resident >= n.Spill.Bytes {
			return fmt.Errorf("%d bytes are on disk, %d of them in memory, whose limit is %d", n.Spill.Bytes, n.Spill.Resident, n.Memory.Limit)
		}
		return nil
	})
}
