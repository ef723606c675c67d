// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/apache/arrow-go/v18/arrow"
)

// None is the source of a cache without a table, which has only the datasets that clients put. It has no columns and no rows.
type None struct{}

// NoneKind is the kind in the pins of None.
const NoneKind = "none"

var _ Source = None{}

// String implements Source.
func (None) String() string { return "no table" }

// Request implements Source.
func (None) Request() any { return NoneKind }

// Plan implements Source.
func (n None) Plan(context.Context, json.RawMessage, *Planning) (*Plan, error) {
	p, err := n.Restore(nil)
	if err == nil {
		p.Schema = n.Schema()
	}
	return p, err
}

// Restore implements Source.
func (None) Restore(json.RawMessage) (*Plan, error) {
	return NewPlan(Identity{}, struct{ Kind string }{NoneKind}, struct{}{})
}

// Open implements Source.
func (n None) Open(context.Context, Version, *Buffers) (Dataset, error) { return n, nil }

// Retry implements Source.
func (None) Retry(error) Retry { return Never }

// Schema implements Dataset.
func (None) Schema() *arrow.Schema { return arrow.NewSchema(nil, nil) }

// Fetch implements Dataset.
func (None) Fetch(context.Context, Split, int64) (Fetched, error) {
	return nil, errors.New("a cache without a table has no splits")
}
