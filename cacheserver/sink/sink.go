// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sink commits datasets to Iceberg tables: data nodes write their rows as Parquet files, and the head makes one snapshot of them.
package sink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	ice "github.com/apache/iceberg-go"
	icecatalog "github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/put/commit"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
)

// Tables are those of a REST catalog. It is safe for concurrent use; its fields must not be changed once it is.
type Tables struct {
	Store    *objstore.Store
	Location iceberg.Location // its catalog; the table in it is ignored
	Budget   *offheap.Budget  // of a data node, for the files that are being written
}

var _ commit.Tables = (*Tables)(nil)

// opened is a table as it is now.
type opened struct {
	*table.Table
	catalog *iceberg.Catalog
	store   *objstore.Store
}

func (o *opened) close() { _ = o.catalog.Close() } // requests have had their answers

// identifier returns the levels of the namespace and the name.
func identifier(name string) (table.Identifier, error) {
	id := strings.Split(name, ".")
	if len(id) < 2 || slices.Contains(id, "") {
		return nil, commit.Refused("table: %.200q, want namespace and name, as db.events", name)
	}
	return id, nil
}

// load gets a table from the catalog.
func (s *Tables) load(ctx context.Context, id table.Identifier) (*opened, error) {
	c, err := iceberg.Connect(ctx, s.Store, s.Location)
	if err != nil {
		return nil, err
	}
	o := &opened{catalog: c}
	if err := o.reload(ctx, id); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// reload gets the table as it is now.
func (o *opened) reload(ctx context.Context, id table.Identifier) error {
	t, err := o.catalog.LoadTable(ctx, id)
	if err != nil {
		return fmt.Errorf("load table %s: %w", strings.Join(id, "."), err)
	}
	if o.store, err = o.catalog.Store(t.MetadataLocation()); err != nil {
		return err
	}
	o.Table = table.New(id, t.Metadata(), t.MetadataLocation(), func(ctx context.Context) (iceio.IO, error) { return fileIO{ctx, o.store}, nil }, nil)
	return nil
}

// open gets the table of a commit, which is made if there is none.
func (s *Tables) open(ctx context.Context, id table.Identifier, r commit.Request) (*opened, error) {
	o, err := s.load(ctx, id)
	if !errors.Is(err, icecatalog.ErrNoSuchTable) {
		return o, err
	}
	schema, err := icebergSchema(r.Schema)
	if err != nil {
		return nil, err
	}
	c, err := iceberg.Connect(ctx, s.Store, s.Location)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	_, err = c.CreateTable(ctx, id, schema)
	if errors.Is(err, icecatalog.ErrNoSuchNamespace) {
		return nil, commit.Refused("table %s: there is no namespace %s: create it", r.Table, strings.Join(id[:len(id)-1], "."))
	}
	if err != nil && !errors.Is(err, icecatalog.ErrTableAlreadyExists) {
		return nil, fmt.Errorf("create table %s: %w", r.Table, err)
	}
	return s.load(ctx, id)
}

// permanent reports whether trying again is of no use after an answer of the catalog.
func permanent(err error) bool {
	var refusal *commit.Refusal
	return errors.As(err, &refusal) || errors.Is(err, fs.ErrPermission) || slices.ContainsFunc([]error{
		rest.ErrBadRequest, rest.ErrUnauthorized, rest.ErrForbidden, rest.ErrAuthorizationExpired,
		icecatalog.ErrNoSuchTable, icecatalog.ErrNoSuchNamespace, ice.ErrInvalidArgument, ice.ErrNotImplemented,
	}, func(known error) bool { return errors.Is(err, known) })
}
