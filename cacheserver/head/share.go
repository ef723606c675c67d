// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"github.com/kubeflow/datacache/cacheserver/plan"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
)

// CutSplits cuts the splits of a table's plan where the shares of data nodes end, as plan.Cut tells.
func CutSplits(splits []iceberg.Split, nodes int) []iceberg.Split {
	sizes := sizesOf(splits)
	pieces := plan.Cut(sizes, nodes)
	out := make([]iceberg.Split, len(pieces))
	for i, p := range pieces {
		out[i] = splits[p.Split].Part(p.First, p.Rows, sizes[p.Split].Part(p.Rows).Bytes)
	}
	return out
}

// DealSplits gives every data node its run of splits, as plan.Deal tells.
func DealSplits(splits []iceberg.Split, nodes int) []plan.Run {
	return plan.Deal(sizesOf(splits), nodes)
}

func sizesOf(splits []iceberg.Split) []plan.Split {
	sizes := make([]plan.Split, len(splits))
	for i, s := range splits {
		sizes[i] = plan.Split{Rows: s.Rows, Bytes: s.Bytes}
	}
	return sizes
}
