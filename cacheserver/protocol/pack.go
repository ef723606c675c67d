// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"errors"
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/pack"
)

// Packs is what a request of kind pack asks for: the packs of a rank, from a step of a window on.
type Packs struct {
	pack.Law
	Column   string // whose items or bytes are tokens
	Position uint64 // in the epoch, where the window begins
	Step     uint64 // number of the first step in the window
	Steps    uint64 // the most steps of the answer
}

// MostPackedSteps is the maximum of Packs.Steps.
const MostPackedSteps = 4096

// packs sets the packs of a request of kind pack.
func (c *body) packs(r *Request) error {
	r.Packs = &Packs{
		Law:    pack.Law{Tokens: c.Tokens, Packs: c.Packs, Window: c.Window, Multiple: c.Multiple, Quadratic: c.Quadratic, Long: c.Long},
		Column: c.Column, Position: c.Position, Step: c.Step, Steps: c.Steps,
	}
	r.Epoch = epoch.Epoch{Seed: c.Seed, Number: c.Epoch, Shuffle: c.Shuffle, Clump: c.Clump, GlobalBatch: 1, Tail: epoch.Keep}
	r.Share = epoch.Share{Rank: c.Rank, World: c.World, Workers: 1}
	if err := errors.Join(r.Epoch.Validate(), r.Share.Validate(), r.Packs.Validate()); err != nil {
		return err
	}
	if c.Column == "" {
		return errors.New("column: empty, want the name of a column")
	}
	if c.Steps < 1 || c.Steps > MostPackedSteps {
		return fmt.Errorf("steps = %d: want 1 to %d", c.Steps, MostPackedSteps)
	}
	return nil
}

// PackedStep is one step in the metadata of an answer to a request of kind pack.
type PackedStep struct {
	Position  uint64      `json:"position"` // where its window begins
	Step      int         `json:"step"`     // its number in the window
	Next      [2]uint64   `json:"next"`     // position and number of the following step; the rows of the epoch and 0 after the last one
	Pieces    int         `json:"pieces"`   // of the rank, in the batch
	Micro     int         `json:"micro"`    // number of micro-batches
	Tokens    int64       `json:"tokens"`   // of all ranks, without what rows are rounded up by
	Sequences int         `json:"sequences"`
	Counts    pack.Counts `json:"counts,omitzero"` // of the window's rows; in its first step
}

// PackedMetadata is the app_metadata of the record batch of such an answer, as JSON.
type PackedMetadata struct {
	Steps []PackedStep `json:"steps"`
	End   bool         `json:"end"` // no step follows
}
