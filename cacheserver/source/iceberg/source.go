// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// Source implements source.Source for a table. Store, Location and Selection must not be changed once it is in use. Data nodes need
// no Selection: the version that they open contains it.
type Source struct {
	Store     *objstore.Store
	Location  Location
	Selection Selection
	// Pinned is the snapshot to plan, even if Selection now selects another one: an earlier process planned it for the same request.
	// Nil: none.
	Pinned *int64
}

var _ source.Source = (*Source)(nil)

// String implements source.Source.
func (s *Source) String() string { return s.Location.String() }

// Request implements source.Source.
func (s *Source) Request() any {
	location := s.Location
	location.Properties = nil
	selection := s.Selection
	selection.TrustManifests = false
	return struct {
		Source    Location
		Selection Selection
	}{location, selection}
}

// Plan implements source.Source.
func (s *Source) Plan(ctx context.Context, pin json.RawMessage, by *source.Planning) (*source.Plan, error) {
	table, err := traced(ctx, "metadata", func(ctx context.Context) (*Table, error) {
		if pin != nil {
			return s.openPinned(ctx, pin, s.selection())
		}
		return Open(ctx, s.Store, s.Location, s.selection())
	})
	if err != nil {
		return nil, err
	}
	p, err := s.plan(table.Pin())
	if err != nil {
		return nil, err
	}
	p.Schema = table.Schema()
	p.Splits, err = table.planBy(ctx, p.Version, by)
	return p, err
}

// selection is the Selection to plan.
func (s *Source) selection() Selection {
	selection := s.Selection
	if s.Pinned != nil {
		selection.SnapshotID, selection.Ref, selection.AsOf = s.Pinned, "", nil
	}
	return selection
}

// plan returns the plan for a pin, without schema and splits.
func (s *Source) plan(pin Pin) (*source.Plan, error) {
	of := source.Identity{UUID: pin.UUID, Snapshot: pin.SnapshotID, Filter: s.Selection.Filter, Columns: s.Selection.Columns}
	return source.NewPlan(of, pin, s.selection())
}

// Restore implements source.Source.
func (s *Source) Restore(encoded json.RawMessage) (*source.Plan, error) {
	var pin Pin
	if err := json.Unmarshal(encoded, &pin); err != nil {
		return nil, fmt.Errorf("the pin of %s: %w", s, err)
	}
	return s.plan(pin)
}

// Open implements source.Source.
func (s *Source) Open(ctx context.Context, v source.Version, buffers *source.Buffers) (source.Dataset, error) {
	var selection Selection
	if err := json.Unmarshal(v.Selection, &selection); err != nil {
		return nil, fmt.Errorf("the selection of %s: %w", s, err)
	}
	table, err := s.openPinned(ctx, v.Pin, selection)
	if err != nil {
		return nil, err
	}
	table.Mem = buffers
	return table, nil
}

func (s *Source) openPinned(ctx context.Context, encoded json.RawMessage, selection Selection) (*Table, error) {
	var pin Pin
	if err := json.Unmarshal(encoded, &pin); err != nil {
		return nil, fmt.Errorf("the pin of %s: %w", s, err)
	}
	location := s.Location
	if location.CatalogURI == "" {
		location.Metadata = pin.MetadataLocation
	}
	if !pin.HasSnapshot {
		return OpenPinned(ctx, s.Store, location, pin, selection)
	}
	// The pin may be of another selection: a branch has moved, or a restarted head knows the snapshot's number, by which the snapshot has its own
	// schema, and as the current one it has the table's.
	number, current := selection, selection
	number.SnapshotID, number.Ref, number.AsOf = &pin.SnapshotID, "", nil
	current.SnapshotID, current.Ref, current.AsOf = nil, "", nil
	return openPinned(ctx, s.Store, location, pin, selection, number, current)
}
