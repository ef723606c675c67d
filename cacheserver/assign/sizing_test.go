// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSizing(t *testing.T) {
	const gb, mib = 1_000_000_000, 1 << 20
	tests := map[string]struct {
		demand Demand
		want   Sizing
	}{
		"images, 100 TB": {
			Demand{Rows: 1_000_000_000, Bytes: 100_000 * gb, Splits: 1_000_000, Nodes: 1000, Ranks: 10_000, Rate: 20_000_000},
			Sizing{DataNodes: 1000, NodeMemory: 108_070_000_000 + 256*mib, HeadMemory: 128*mib + 680_000_000, Cores: 46, Connections: 10_000_000},
		},
		"tokens":   {Demand{Rows: 1_000_000, Bytes: 2 * gb, Splits: 10, Nodes: 1, Ranks: 8, Rate: gb}, Sizing{DataNodes: 1, NodeMemory: 2_161_400_000 + 256*mib, HeadMemory: 128*mib + 284_000, Cores: 2.3, Connections: 8}},
		"tabular":  {Demand{Rows: 1_000_000, Bytes: 72_000_000, Splits: 1, Nodes: 2, Ranks: 1, Rate: gb}, Sizing{DataNodes: 2, NodeMemory: 38_905_200 + 256*mib, HeadMemory: 128*mib + 560_400, Cores: 1.1, Connections: 2}},
		"no reads": {Demand{Nodes: 3}, Sizing{DataNodes: 3, NodeMemory: 256 * mib, HeadMemory: 128*mib + 840_000}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.demand.Size()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
