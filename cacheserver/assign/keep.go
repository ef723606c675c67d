// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

// copies is the number of data nodes that keep each part of a plan.
const copies = 3

// Keepers returns the data nodes that keep a part of a plan: the part's own node and those that follow it, the first after the last.
func Keepers(part, nodes int) []int { return around(part, nodes, 1) }

// Kept returns the parts of a plan that a data node keeps, its own first.
func Kept(node, nodes int) []int { return around(node, nodes, nodes-1) }

func around(first, n, step int) []int {
	list := make([]int, min(copies, n))
	for i := range list {
		list[i] = (first + i*step) % n
	}
	return list
}
