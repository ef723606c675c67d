// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package source is the contract between what reads a dataset and the roles that plan, load and serve it.
//
// A head plans a [Source]: which version of the dataset is cached, its schema, its splits in an order that is fixed by version and selection.
// A data node opens that version and fetches the splits that it was assigned. To both, splits and versions are opaque: what there is to know
// of them is in [SplitInfo] and [Identity].
package source

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
)

// Source is a dataset, which may have other rows each time that it is planned, and what is to be cached of it. Implementations are safe for
// concurrent use.
type Source interface {
	fmt.Stringer // names the dataset in messages, without credentials

	// Request is a value whose JSON form is equal in processes that were asked to cache the same, whichever version it has when they ask.
	// It holds no credentials.
	Request() any
	// Plan plans the version that the dataset has now. It calls progress after each file, never twice at a time.
	Plan(ctx context.Context, progress func(done, total int)) (*Plan, error)
	// Restore is what another process planned, but for the schema: Plan.Version.Pin and the JSON forms of the splits. It reads nothing.
	Restore(pin json.RawMessage, splits []json.RawMessage) (*Plan, error)
	// Open opens a version that another process planned, or says what is different now. Rows are decoded in buffers.
	Open(ctx context.Context, v Version, buffers *Buffers) (Dataset, error)
	// Split reads the JSON form of a split.
	Split(text json.RawMessage) (Split, error)
	// Retry says whether another try may succeed where one of the source's calls returned the error.
	Retry(err error) Retry
}

// Dataset is one version of a dataset, which does not change. It is safe for concurrent use and has nothing to close.
type Dataset interface {
	// Schema is the schema of every batch. It must not be changed.
	Schema() *arrow.Schema
	// Fetch prefetches the bytes of a split, unless they are on a local disk. Nothing is decoded. ctx also governs the reads of Batches.
	Fetch(ctx context.Context, s Split) (Fetched, error)
}

// Fetched is a split whose bytes were prefetched. It is for one goroutine, which closes it.
type Fetched interface {
	// Batches decodes the rows of the split in their order. It ends with an error, or when every row was yielded. Each call decodes anew
	// and yields the same batches. The caller releases each batch.
	Batches(ctx context.Context) iter.Seq2[Batch, error]
	// Decoders is how many columns Batches decoded by decoders of our own, and how many by general, slower ones.
	Decoders() (direct, general int)
	// Close frees the prefetched bytes; batches stay valid.
	Close()
}

// Batch is rows of a split.
type Batch struct {
	// RecordBatch has the dataset's schema and at least one row.
	arrow.RecordBatch
	// Keep has a bit for every row, the lowest of a byte first: rows without are deleted or do not match the filter. At least one is set.
	// Nil: all rows count.
	Keep []byte
}

// Split is a part of a dataset that is fetched and decoded at once. It is immutable; its JSON form is for another process of the same source.
type Split interface {
	Info() SplitInfo
	// Part is rows [first, first+rows) of a split of a whole row group; bytes are their part of Bytes.
	Part(first, rows, bytes int64) Split
}

// SplitInfo is what whoever assigns, loads and names splits knows of one.
type SplitInfo struct {
	File     string // its URI
	RowGroup int    // of the file
	First    int64  // the split's first row, counted from the row group's
	Rows     int64  // before deletes and filter
	Bytes    int64  // about what the rows take in memory: a weight, not a promise
	Length   int64  // bytes that are fetched, at most
	Exact    bool   // Batches yields Rows rows or an error
}

// String names the split in messages.
func (i SplitInfo) String() string { return fmt.Sprintf("%s row group %d", i.File, i.RowGroup) }

// Version names one version of a dataset and what is cached of it. Another process of the same source opens the same rows by it.
type Version struct {
	Pin       json.RawMessage `json:"pin"`
	Selection json.RawMessage `json:"selection"`
}

// Identity is what people and clients know of a version.
type Identity struct {
	UUID     string   // of the dataset
	Snapshot int64    // 0: the dataset has none, and no rows
	Filter   string   // as it was given; "" without one
	Columns  []string // as they were given; nil: all
}

// Plan is a planned version of a dataset.
type Plan struct {
	Version  Version
	Identity Identity
	Schema   *arrow.Schema
	Splits   []Split // in the order of their rows
}

// Retry says whether another try may succeed.
type Retry int

const (
	// Never says that it fails in the same way each time.
	Never Retry = iota
	// OnceMended says that somebody can remove the reason without a change of the dataset: rights, a file that is missing.
	OnceMended
	// Soon says that the reason may be gone by itself: a store that is away, overloaded or slow.
	Soon
)
