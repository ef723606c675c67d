// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"encoding/json"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/internal/words"
)

// sizing answers the action "sizing": what the cache takes when a number of ranks read at a rate. It is UNAVAILABLE until all rows are in memory.
func (h *Head) sizing(body []byte) (any, error) {
	var asked struct {
		Ranks int   `json:"ranks"`
		Rate  int64 `json:"rate"` // bytes a second that each rank reads
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, `sizing: want {"ranks": NUMBER, "rate": BYTES A SECOND}: %v`, err)
	}
	d := assign.Demand{Ranks: asked.Ranks, Rate: asked.Rate}
	if err := d.Validate(); err != nil {
		return nil, status.Error(codes.InvalidArgument, "sizing: "+err.Error())
	}
	s := h.Report()
	if s.State != protocol.StateReady {
		return nil, status.Error(codes.Unavailable, s.Reason)
	}
	return holding(d, s).Size(), nil
}

// holding is a demand on a cache that holds what its status says.
func holding(d assign.Demand, s protocol.Status) assign.Demand {
	d.Rows, d.Bytes, d.Splits, d.Nodes = s.Rows, s.Bytes, s.Splits.Total, len(s.Nodes)
	return d
}

// DescribeSizing returns what a demand takes, as names with their values.
func DescribeSizing(d assign.Demand) [][2]string {
	size := d.Size()
	return [][2]string{
		{"data nodes", strconv.Itoa(size.DataNodes)},
		{"memory of each", words.ExactBytes(size.NodeMemory)},
		{"or less, and on a disk of each (--spill-dir)", words.ExactBytes(d.NodeDisk())},
		{"cores of all data nodes", strconv.FormatFloat(size.Cores, 'f', 1, 64)},
		{"connections, if each rank reads from all", strconv.Itoa(size.Connections)},
		{"memory of the head", words.ExactBytes(size.HeadMemory)},
	}
}
