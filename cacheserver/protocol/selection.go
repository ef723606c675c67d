// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/kubeflow/datacache/cacheserver/epoch"
)

// parseSplit parses the fields of a split, whose names must match exactly.
func parseSplit(fields map[string]json.RawMessage) (*epoch.Split, error) {
	s := epoch.Split{Shuffle: true}
	numbers := map[string]*uint64{"seed": &s.Seed, "of": &s.Of, "from": &s.From, "to": &s.To}
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		text, ok := fields[name]
		if !ok {
			return nil, fmt.Errorf("split.%s: missing", name)
		}
		if err := json.Unmarshal(text, numbers[name]); err != nil || string(text) == "null" {
			return nil, fmt.Errorf("split.%s: %.64s does not fit, want an integer in [0, 2^64)", name, text)
		}
	}
	if text, ok := fields["shuffle"]; ok {
		if err := json.Unmarshal(text, &s.Shuffle); err != nil {
			return nil, fmt.Errorf("split.shuffle: %.64s does not fit, want true or false", text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if numbers[name] == nil && name != "shuffle" {
			return nil, fmt.Errorf("split: %.64q is no field of a split, which has seed, of, from, to, shuffle", name)
		}
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &s, nil
}

// Selection says which rows of the cached table an answer is about.
type Selection struct {
	Filter string       `json:"filter"` // in canonical form; "" selects all rows
	Split  *epoch.Split `json:"split,omitempty"`
}
