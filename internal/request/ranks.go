// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Limits of the model of a cache's size (docs/scale.md).
const (
	// maxConnections bounds the connections of a TrainJob's ranks to the data nodes of one cache.
	maxConnections = 1_000_000
	// lanes is the number of parts of a table in order version 2, in which ranks have the fewest connections.
	lanes = 32
	// headPerNode is the memory that a head takes for each data node, in bytes.
	headPerNode = 280_000
)

var numNodesPath = field.NewPath("spec", "trainer", "numNodes")

// Workers are the processes of a TrainJob that read its cache, as far as it gives their numbers itself.
type Workers struct{ nodes, perNode int64 }

func workersOf(given *trainer.Trainer) Workers {
	t := ptr.Deref(given, trainer.Trainer{})
	return Workers{int64(ptr.Deref(t.NumNodes, 1)), int64(ptr.Deref(t.NumProcPerNode, 1))}
}

// Check rejects more ranks than can be connected to the data nodes that each of them reads from.
func (w Workers) Check(dataNodes int32) field.ErrorList {
	ranks, each := w.nodes*w.perNode, connectionsOf(int64(dataNodes))
	if ranks <= maxConnections/each {
		return nil
	}
	return field.ErrorList{field.Invalid(numNodesPath, w.nodes, fmt.Sprintf(
		"with %d processes each, these are %d ranks, each of which reads from at least %d of %d data nodes: at most %d such ranks can read one cache; take fewer of them, or fewer data nodes (CLUSTER_SIZE)",
		w.perNode, ranks, each, dataNodes, maxConnections/each))}
}

// connectionsOf is how many data nodes a rank reads from at least.
func connectionsOf(dataNodes int64) int64 { return max(1, min(dataNodes, (dataNodes+lanes-1)/lanes+2)) }
