// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"slices"
	"testing"
)

func TestPartsAreKeptByThree(t *testing.T) {
	for nodes := 1; nodes <= 7; nodes++ {
		for part := range nodes {
			keepers := Keepers(part, nodes)
			if len(keepers) != min(nodes, 3) || keepers[0] != part {
				t.Errorf("part %d of %d is kept by %v", part, nodes, keepers)
			}
			for node := range nodes {
				kept := Kept(node, nodes)
				if slices.Contains(keepers, node) != slices.Contains(kept, part) || kept[0] != node {
					t.Errorf("part %d of %d is kept by %v, node %d keeps %v", part, nodes, keepers, node, kept)
				}
			}
		}
	}
}
