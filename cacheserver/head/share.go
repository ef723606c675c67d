// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// CutSplits cuts the splits of a table's plan where the shares of data nodes end; see assign.Cut.
func CutSplits(splits []source.Split, nodes int) []source.Split {
	sizes := sizesOf(splits)
	pieces := assign.Cut(sizes, nodes)
	out := make([]source.Split, len(pieces))
	for i, p := range pieces {
		out[i] = splits[p.Split].Part(p.First, p.Rows, sizes[p.Split].Part(p.Rows).Bytes)
	}
	return out
}

// DealSplits returns every data node's range of splits; see assign.Contiguous.
func DealSplits(splits []source.Split, nodes int) []assign.Range {
	return assign.Contiguous(sizesOf(splits), nodes)
}

func sizesOf(splits []source.Split) []assign.Size {
	sizes := make([]assign.Size, len(splits))
	for i, s := range splits {
		sizes[i] = assign.Size{Rows: s.Rows, Bytes: s.Bytes}
	}
	return sizes
}
