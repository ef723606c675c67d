// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"fmt"
	"math"
)

// Demand is what a cache holds and how much is read from it.
type Demand struct {
	Rows, Bytes int64 // of the served columns
	Splits      int
	Nodes       int   // at least 1
	Ranks       int   // that read at the same time
	Rate        int64 // bytes a second that each reads
}

// Sizing is what a cache needs, by measurements (docs/benchmarks.md, docs/scale.md).
type Sizing struct {
	DataNodes   int     `json:"data_nodes"`
	NodeMemory  int64   `json:"node_memory"` // of each data node
	HeadMemory  int64   `json:"head_memory"`
	Cores       float64 `json:"cores"`       // of all data nodes together, while all ranks read
	Connections int     `json:"connections"` // of all ranks to data nodes, if each reads from all
}

// MostRanks is the greatest number of ranks of a demand.
const MostRanks = 1_000_000

// Validate returns an error if the ranks or the rate are out of range.
func (d Demand) Validate() error {
	if d.Ranks < 0 || d.Ranks > MostRanks {
		return fmt.Errorf("ranks: %d, want 0 to %d", d.Ranks, MostRanks)
	}
	if d.Rate < 0 {
		return fmt.Errorf("rate: %d, want 0 or more bytes a second", d.Rate)
	}
	return nil
}

const (
	// HeadClients is the memory in bytes of a head for its clients.
	HeadClients = 128 << 20

	arrowMemory  = 1.07      // memory for each byte of Arrow data
	nodeClients  = 256 << 20 // of a data node
	unevenShares = 1.01      // the largest share of a data node; see Cut
	gigabyte     = 1e9
)

// PlanMemory is the memory in bytes that a plan takes of a head at most, when the head gets it from data nodes (docs/scale.md).
func PlanMemory(nodes, splits int) int64 { return 280_000*int64(nodes) + 400*int64(splits) }

// Size returns what a demand needs.
func (d Demand) Size() Sizing {
	return Sizing{
		DataNodes:   d.Nodes,
		NodeMemory:  int64(arrowMemory*unevenShares*float64(d.Bytes)/float64(d.Nodes)) + nodeClients,
		HeadMemory:  HeadClients + PlanMemory(d.Nodes, d.Splits),
		Cores:       math.Ceil(10*float64(d.Ranks)*float64(d.Rate)/gigabyte*d.serving()) / 10,
		Connections: d.Ranks * d.Nodes,
	}
}

// NodeDisk is how many bytes of a disk the rows of each data node take, if they are in files too.
func (d Demand) NodeDisk() int64 { return int64(unevenShares * float64(d.Bytes) / float64(d.Nodes)) }

// serving is the CPU seconds for each GB that is read, by the mean length of a row: of tabular data, of tokens and of images.
func (d Demand) serving() float64 {
	switch row := d.Bytes / max(d.Rows, 1); {
	case row < 512:
		return 1.07
	case row < 64<<10:
		return 0.28
	}
	return 0.23
}
