// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/epoch"
)

// mix sets the mixture of a request of kind mix.
func (c *body) mix(r *Request) (err error) {
	r.Epoch.Rows = c.Length
	r.Mix = &epoch.Mix{Part: c.Part, Parts: make([]epoch.Part, len(c.Parts)), Phases: c.Phases, Unit: c.Unit}
	for i, fields := range c.Parts {
		if r.Mix.Parts[i], err = parsePart(fields); err != nil {
			return fmt.Errorf("parts[%d]: %w", i, err)
		}
	}
	return r.Mix.Validate(r.Epoch)
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
