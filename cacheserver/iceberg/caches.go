// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

// Limits of what a Table keeps of its files, in bytes.
const (
	footerLimit = 64 << 20
	deleteLimit = 256 << 20
)

// caches hold what several splits need: a file's footer, parsed deletes.
type caches struct {
	footers   *cache[*footer]
	positions *cache[positions] // by delete file
	kept      *cache[bitmap]    // by data file
	equal     *cache[*keySet]   // by delete file and types
}

func newCaches() caches {
	return caches{
		footers:   newCache(footerLimit, (*footer).cost),
		positions: newCache(deleteLimit, positions.cost),
		kept:      newCache(deleteLimit, func(b bitmap) int64 { return int64(len(b)) + 64 }),
		equal:     newCache(deleteLimit, (*keySet).cost),
	}
}

// names returns the table's name mapping.
func (t *Table) names() mapping { return t.table.Metadata().NameMapping() }
