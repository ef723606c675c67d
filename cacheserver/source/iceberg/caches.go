// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// Limits on the cached contents of a Table's files, in bytes.
const (
	footerLimit = 64 << 20
	deleteLimit = 256 << 20
)

// caches hold data that several splits need: a file's footer, parsed deletes.
type caches struct {
	footers   *cache[*parquet.Footer]
	positions *cache[positions] // by delete file
	kept      *cache[bitmap]    // by data file
	equal     *cache[*keySet]   // by delete file and field types
}

func newCaches() caches {
	return caches{
		footers:   newCache(footerLimit, (*parquet.Footer).Cost),
		positions: newCache(deleteLimit, positions.cost),
		kept:      newCache(deleteLimit, func(b bitmap) int64 { return int64(len(b)) + 64 }),
		equal:     newCache(deleteLimit, (*keySet).cost),
	}
}

// names returns the table's name mapping.
func (t *Table) names() parquet.NameMapping { return t.table.Metadata().NameMapping() }

// footerOf returns the footer of a data file, which must have the size that the table's manifest states. If the footer is cached, the
// file is not read.
func (t *Table) footerOf(ctx context.Context, uri string, size int64) (*parquet.Footer, error) {
	return t.caches.footers.get(ctx, uri, func(ctx context.Context) (*parquet.Footer, error) {
		f, err := t.store.Open(ctx, uri)
		if err != nil {
			return nil, fmt.Errorf("data file: %w", err)
		}
		defer func() { _ = f.Close() }() // opened for reading: closing can't lose data
		if f.Size() != size {
			return nil, fmt.Errorf("data file %s: it has %d bytes, the table's manifest says %d: it was truncated or replaced: restore it or roll the table back", uri, f.Size(), size)
		}
		return parquet.ReadFooter(ctx, f, t.names())
	})
}

func rowsDiffer(role, uri string, footer, manifest int64) error {
	return fmt.Errorf("%s %s: its footer has %d rows, the table's manifest %d: the file is truncated or was replaced: restore it or roll the table back", role, uri, footer, manifest)
}
