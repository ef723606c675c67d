// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package delta reads Delta tables: which files, columns and deleted rows a version of a table has, as its log says.
//
// A version is the newest checkpoint before it and the commits since. Files are in the order of the times at which they were added, then of
// their URIs. A table that needs a feature which this package does not know is refused, as its rows would be read wrongly. Package scan reads
// the files.
package delta

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// Selection selects a version, and rows and columns of it. The zero value selects the latest version and all rows and columns.
type Selection struct {
	Version *int64     `json:"version,omitempty"` // nil: AsOf says which
	AsOf    *time.Time `json:"as_of,omitempty"`   // the version that was the latest one then; nil: the latest one
	scan.Selection
}

// Source implements source.Source for a Delta table. Its fields must not be changed once it is in use. Data nodes need only Store: the
// version that they open contains the rest.
type Source struct {
	Store     *objstore.Store
	URI       string // of the table's folder, which contains _delta_log
	Selection Selection
	// Pinned is the version to plan, even if Selection now selects another one: an earlier process planned it for the same request. Nil:
	// none.
	Pinned *int64
}

var _ source.Source = (*Source)(nil)

// String implements source.Source.
func (s *Source) String() string { return s.URI }

// Request implements source.Source.
func (s *Source) Request() any {
	return struct {
		Delta     string
		Selection Selection
	}{s.URI, s.Selection}
}

// Kind is Pin.Kind.
const Kind = "delta"

// pinVersion is the version of the format of pins.
const pinVersion = 1

// Pin identifies a version of a table, so that another process can open the same. It is plain data.
type Pin struct {
	V       int      `json:"v"`
	Kind    string   `json:"kind"` // "delta"
	URI     string   `json:"uri"`
	Version int64    `json:"version"`
	Table   metaData `json:"table"`
	Mapping string   `json:"mapping,omitempty"` // how files name columns: empty, by their names; name; id
}

// ID is the table's id.
func (p *Pin) ID() string { return p.Table.ID }

func decodePin(text json.RawMessage) (*Pin, error) {
	pin := &Pin{}
	if err := json.Unmarshal(text, pin); err != nil {
		return nil, fmt.Errorf("the pin of a Delta table: %w", err)
	}
	if pin.V != pinVersion || pin.Kind != Kind {
		return nil, fmt.Errorf("the pin of a Delta table has version %d and kind %q, want version %d and kind %q: head and data nodes are of different releases", pin.V, pin.Kind, pinVersion, Kind)
	}
	return pin, nil
}

// replay reads the log up to the version.
func (p *Pin) replay(ctx context.Context, store *objstore.Store) (*state, error) {
	l, err := listLog(ctx, store, p.URI)
	if err != nil {
		return nil, err
	}
	s, _, err := l.replay(ctx, &p.Version)
	if err == nil && s.metaData.ID != p.ID() {
		err = fmt.Errorf("%s is another table now: its metaData.id is %s, and was %s when the cache was planned: start the cache anew", p.URI, s.metaData.ID, p.ID())
	}
	return s, err
}

// Plan implements source.Source.
func (s *Source) Plan(ctx context.Context, pin json.RawMessage, by *source.Planning) (*source.Plan, error) {
	at, state, err := s.locate(ctx, pin)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	t, err := newTable(s.Store, at, s.Selection.Selection)
	if err != nil {
		return nil, fmt.Errorf("plan version %d of %s: %w", at.Version, s.URI, err)
	}
	files, err := t.planned(state)
	if err != nil {
		return nil, fmt.Errorf("plan version %d of %s: %w", at.Version, s.URI, err)
	}
	splits, err := t.Plan(ctx, scan.Files{N: len(files), At: func(i int) *scan.File { return files[i] }}, by)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("version %d of %s: %w: VACUUM removes the files of old versions: name a later one", at.Version, s.URI, err)
	}
	if err != nil {
		return nil, err
	}
	p, err := s.planOf(at)
	if err != nil {
		return nil, err
	}
	p.Schema, p.Splits = t.Served, splits
	return p, nil
}

// locate returns the version to plan and its state.
func (s *Source) locate(ctx context.Context, encoded json.RawMessage) (*Pin, *state, error) {
	if encoded != nil {
		pin, err := decodePin(encoded)
		if err != nil {
			return nil, nil, err
		}
		state, err := pin.replay(ctx, s.Store)
		return pin, state, err
	}
	l, err := listLog(ctx, s.Store, s.URI)
	if err != nil {
		return nil, nil, err
	}
	version := s.Pinned
	switch {
	case version != nil:
	case s.Selection.Version != nil && s.Selection.AsOf != nil:
		return nil, nil, fmt.Errorf("version %d and as of %s: give at most one of version and time", *s.Selection.Version, s.Selection.AsOf.Format(time.RFC3339Nano))
	case s.Selection.AsOf != nil:
		before, err := l.before(ctx, *s.Selection.AsOf)
		if err != nil {
			return nil, nil, err
		}
		version = &before
	default:
		version = s.Selection.Version
	}
	state, at, err := l.replay(ctx, version)
	if err != nil {
		return nil, nil, err
	}
	pin := &Pin{V: pinVersion, Kind: Kind, URI: l.root, Version: at, Table: *state.metaData}
	if pin.Mapping, err = state.protocol.mapping(state.metaData); err != nil {
		return nil, nil, fmt.Errorf("version %d of %s: %w", at, s.URI, err)
	}
	pin.Table.Configuration = nil
	return pin, state, nil
}

// Restore implements source.Source.
func (s *Source) Restore(encoded json.RawMessage) (*source.Plan, error) {
	pin, err := decodePin(encoded)
	if err != nil {
		return nil, err
	}
	return s.planOf(pin)
}

// planOf returns the plan for a pin, without schema and splits.
func (s *Source) planOf(pin *Pin) (*source.Plan, error) {
	of := source.Identity{UUID: pin.ID(), Snapshot: pin.Version, Filter: s.Selection.Filter, Columns: s.Selection.Columns}
	return source.NewPlan(of, pin, s.Selection.Selection)
}

// Open implements source.Source. It reads nothing.
func (s *Source) Open(_ context.Context, v source.Version, buffers *source.Buffers) (source.Dataset, error) {
	pin, err := decodePin(v.Pin)
	if err != nil {
		return nil, err
	}
	var selection scan.Selection
	if err := json.Unmarshal(v.Selection, &selection); err != nil {
		return nil, fmt.Errorf("the selection of %s: %w", pin.URI, err)
	}
	t, err := newTable(s.Store, pin, selection)
	if err != nil {
		return nil, fmt.Errorf("open version %d of %s: %w", pin.Version, pin.URI, err)
	}
	t.Mem = buffers
	return t.Table, nil
}

// Retry implements source.Source.
func (s *Source) Retry(err error) source.Retry { return scan.Retry(err) }
