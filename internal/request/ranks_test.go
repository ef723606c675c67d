// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"testing"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
)

// TestLimitsAreThoseOfTheServer checks the constants that are written here again, since the control plane does not link the server.
func TestLimitsAreThoseOfTheServer(t *testing.T) {
	if server := assign.PlanMemory(1, 0); headPerNode != server {
		t.Errorf("headPerNode is %d, a head takes %d", headPerNode, server)
	}
	all := epoch.Epoch{Rows: 1 << 20, Shuffle: true, Clump: 1, GlobalBatch: 1 << 10, Tail: epoch.Drop, Lanes: true}
	if server := len(all.LanedRows(epoch.Share{World: 1, Workers: 1})); lanes != server {
		t.Errorf("lanes is %d, the order has %d", lanes, server)
	}
}
