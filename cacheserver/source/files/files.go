// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package files reads folders of Parquet files as one table, without a table format: which files and columns it has, and in which order.
//
// A file is a part of the table if its name ends in .parquet and neither it nor a folder above it begins with _ or a dot. Files are in
// the order of their paths, byte by byte; so are the row groups in a file, and the rows in these. Columns are found by name; the table
// has the columns of all files, and those of the folders' names such as day=2026-01-31. A folder that another format describes is
// refused, since its files also hold deleted and replaced rows. Package scan reads the files.
package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/google/uuid"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// MaxURIs is the number of URIs that a Location may have.
const MaxURIs = 16

// Location says where the files are. It is plain data.
type Location struct {
	// URIs are folders, globs or files, whose files follow each other in this order. In a glob, *, ? and [a-z] stand for parts of a name,
	// and ** for any number of folders. A single URI may name a list of files instead; see ListQuery.
	URIs []string `json:"uris"`
	// Plain says that folder names such as day=2026-01-31 are no columns.
	Plain bool `json:"plain,omitempty"`
	// Types are the types of columns of folder names, by name: "string", "integer" or "date". The type of another one depends on its values.
	Types map[string]string `json:"types,omitempty"`
}

// Source implements source.Source for folders of files. Its fields must not be changed once it is in use. Data nodes need only Store: the
// version that they open contains the rest.
type Source struct {
	Store     *objstore.Store
	Location  Location
	Selection scan.Selection
	// Pinned is the Identity.Snapshot of the only version that may be planned: an earlier process planned it for the same request. Nil:
	// any.
	Pinned *int64
	Log    *slog.Logger // receives what a plan leaves out; nil: no log
}

var _ source.Source = (*Source)(nil)

// String implements source.Source.
func (s *Source) String() string { return strings.Join(s.Location.URIs, ", ") }

// Request implements source.Source.
func (s *Source) Request() any {
	return struct {
		Files     Location
		Selection scan.Selection
	}{s.Location, s.Selection}
}

// attempts is how often the files are listed and read before a plan fails because they change meanwhile.
const attempts = 3

// errReplaced says that a file is not the one that was listed.
var errReplaced = errors.New("it changed since the files were listed")

// Plan implements source.Source. The version is identified by the paths, sizes and versions of all files. If a file changes while the
// footers are read, all are listed again.
func (s *Source) Plan(ctx context.Context, pin json.RawMessage, by *source.Planning) (*source.Plan, error) {
	if pin != nil {
		version, err := decodePin(pin)
		if err != nil {
			return nil, err
		}
		pinned := *s
		pinned.Pinned = new(version.Snapshot())
		return pinned.Plan(ctx, nil, by)
	}
	if err := s.Location.validate(); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	for attempt := 1; ; attempt++ {
		found, err := s.list(ctx)
		if err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
		p, err := s.plan(ctx, found, by)
		changed := errors.Is(err, errReplaced) || errors.Is(err, objstore.ErrChanged) || errors.Is(err, fs.ErrNotExist)
		if changed && attempt == attempts {
			return nil, fmt.Errorf("plan: files changed each of %d times that they were listed: load them again once their writer is done: %w", attempts, err)
		}
		if !changed {
			return p, err
		}
	}
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
	return source.NewPlan(source.Identity{
		UUID: uuid.NewSHA1(uuid.NameSpaceURL, []byte(strings.Join(pin.URIs, "\n"))).String(), Snapshot: pin.Snapshot(),
		Filter: s.Selection.Filter, Columns: s.Selection.Columns,
	}, pin, s.Selection)
}

// Open implements source.Source. It reads nothing: a file that is no longer the planned one is found when it is fetched.
func (s *Source) Open(_ context.Context, v source.Version, buffers *source.Buffers) (source.Dataset, error) {
	pin, err := decodePin(v.Pin)
	if err != nil {
		return nil, err
	}
	var selection scan.Selection
	if err := json.Unmarshal(v.Selection, &selection); err != nil {
		return nil, fmt.Errorf("the selection of %s: %w", pin, err)
	}
	schema, err := pin.schema()
	if err != nil {
		return nil, err
	}
	t := newTable(s.Store, pin)
	if err := t.choose(schema, pin.Partitions, selection); err != nil {
		return nil, fmt.Errorf("open %s: %w", pin, err)
	}
	t.Mem = buffers
	return t.Table, nil
}

// Retry implements source.Source.
func (s *Source) Retry(err error) source.Retry { return scan.Retry(err) }

func (l Location) validate() error {
	if len(l.URIs) == 0 {
		return errors.New("no files named: give a folder, a glob or a file")
	}
	if len(l.URIs) > MaxURIs {
		return fmt.Errorf("%d addresses of files: at most %d are read: name the folder above them, or use a glob", len(l.URIs), MaxURIs)
	}
	for i, uri := range l.URIs {
		if strings.TrimSpace(uri) == "" {
			return fmt.Errorf("address %d of %d is empty: give a folder, a glob or a file", i+1, len(l.URIs))
		}
		if strings.HasSuffix(uri, ListQuery) && len(l.URIs) > 1 {
			return fmt.Errorf("address %s is a list of files and %d other addresses are given: name the list alone, with all files in it", uri, len(l.URIs)-1)
		}
	}
	return l.validateTypes()
}
