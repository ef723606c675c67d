// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/epoch"
)

// First is an epoch, or a rank's share of one, that clients will read first: its rows are loaded in its order.
type First struct {
	Epoch epoch.Epoch // Rows is the head's to set
	Share epoch.Share
}

// ParseFirst parses the command of an epoch. Of what an epoch's command must have it needs the seed and the global batch only: the other fields are
// those of epoch 0 of a loader with its defaults, by all ranks.
func ParseFirst(command string) (*First, error) {
	fields := map[string]any{"v": Version, "kind": Epoch, "epoch": 0, "shuffle": true, "tail": "drop", "rank": 0, "world": 1}
	var given map[string]json.RawMessage
	if err := json.Unmarshal([]byte(command), &given); err != nil {
		return nil, fmt.Errorf("%.64q is no JSON object: want the command of an epoch, such as %s: %w", command, exampleOfFirst, err)
	}
	for name, value := range given {
		fields[name] = value
	}
	whole, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	r, err := parseCommand(whole)
	switch {
	case err != nil:
		return nil, err
	case r.Kind != Epoch || r.Filter != "" || r.Split != nil || r.Dataset != "":
		return nil, fmt.Errorf(`command: want one of kind "epoch" without filter, split and dataset, such as %s`, exampleOfFirst)
	}
	return &First{Epoch: r.Epoch, Share: r.Share}, nil
}

const exampleOfFirst = `{"seed":7,"global_batch":256}`

// Cursor iterates over the epoch's rows of all data nodes; rows is their number.
func (f First) Cursor(rows uint64) (*epoch.Cursor, error) {
	f.Epoch.Rows = rows
	return epoch.NewCursor(f.Epoch, f.Share)
}
