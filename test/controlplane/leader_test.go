// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"testing"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// TestAnotherManagerTakesOver stops the leading manager. The other one, which only served the webhook until then, gives the next
// TrainJob its cache, and frees the one that the first manager created. The test is not parallel, since there is only one leader to
// stop.
func TestAnotherManagerTakesOver(t *testing.T) {
	runtimes(t)
	ns := cluster.Namespace(t)
	served(t, ns, "before", "after")
	before := cacheJob(ns, "before", "cache://demo/reviews", tableEnv()...)
	cluster.Create(t, before)
	all(t, ns, 1, v1alpha1.StateReady)
	if err := leader.stop(); err != nil {
		t.Fatalf("the leader ended with %v", err)
	}
	cluster.Create(t, cacheJob(ns, "after", "cache://demo/reviews", tableEnv()...))
	all(t, ns, 2, v1alpha1.StateReady)
	if err := cluster.Client.Delete(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	all(t, ns, 1, v1alpha1.StateReady)
}
