// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/epoch"
)

// parseMix parses a command of kind mix. `shuffle` is true unless the command says otherwise.
func parseMix(cmd []byte) (Request, error) {
	shuffle := true
	body := struct {
		sequence
		Part   *uint64                      `json:"part"`
		Parts  []map[string]json.RawMessage `json:"parts"`
		Phases []uint64                     `json:"phases"`
		Unit   *epoch.Unit                  `json:"unit"`
		Length *uint64                      `json:"length"`
	}{sequence: sequence{Shuffle: &shuffle}}
	if err := json.Unmarshal(cmd, &body); err != nil {
		return Request{}, commandError(err)
	}
	err := required(
		field{"part", body.Part == nil}, field{"parts", body.Parts == nil},
		field{"unit", body.Unit == nil}, field{"length", body.Length == nil},
	)
	if err != nil {
		return Request{}, err
	}
	r, err := body.request(Mix)
	if err != nil {
		return Request{}, err
	}
	r.Epoch.Rows = *body.Length
	r.Mix = &epoch.Mix{Part: *body.Part, Parts: make([]epoch.Part, len(body.Parts)), Phases: body.Phases, Unit: *body.Unit}
	for i, fields := range body.Parts {
		if r.Mix.Parts[i], err = parsePart(fields); err != nil {
			return Request{}, fmt.Errorf("command: parts[%d]: %w", i, err)
		}
	}
	if err := r.Mix.Validate(r.Epoch); err != nil {
		return Request{}, fmt.Errorf("command: %w", err)
	}
	return r, nil
}

// parsePart parses the fields of one part, whose names must match exactly.
func parsePart(fields map[string]json.RawMessage) (epoch.Part, error) {
	var p epoch.Part
	for name, into := range map[string]any{"rows": &p.Rows, "weights": &p.Weights} {
		text, ok := fields[name]
		if !ok {
			return epoch.Part{}, fmt.Errorf("%s: missing", name)
		}
		if err := json.Unmarshal(text, into); err != nil {
			return epoch.Part{}, fmt.Errorf("%s: %.64s does not fit, want whole numbers in [0, 2^64)", name, text)
		}
	}
	for name := range fields {
		if name != "rows" && name != "weights" {
			return epoch.Part{}, fmt.Errorf("%.64q is no field of a part, which has rows, weights", name)
		}
	}
	return p, nil
}
