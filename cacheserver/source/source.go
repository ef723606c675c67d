// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package source is the contract between the readers of a dataset and the head and data nodes that plan, load and serve it.
//
// A head plans a [Source]: which version of the dataset is cached, its schema, and its splits, in an order that version and selection
// determine. A data node opens that version and fetches the splits assigned to it. Versions are opaque to both;
// [Identity] describes them.
package source

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
)

// Source is a dataset, whose rows may differ each time that it is planned, and a selection of it to cache. Implementations must be
// safe for concurrent use.
type Source interface {
	fmt.Stringer // names the dataset in messages, without credentials

	// Request returns a value whose JSON is equal in all processes that cache the same selection, whichever version is current at the
	// time. It contains no credentials.
	Request() any
	// Plan plans the current version of the dataset or, unless it is nil, that of another plan's Version.Pin. by may be nil.
	Plan(ctx context.Context, pin json.RawMessage, by *Planning) (*Plan, error)
	// Restore restores another process's plan, except for its schema and splits, from Plan.Version.Pin. It reads nothing.
	Restore(pin json.RawMessage) (*Plan, error)
	// Open opens a version that another process planned; if that is impossible, the error says what has changed. Rows are decoded in
	// buffers.
	Open(ctx context.Context, v Version, buffers *Buffers) (Dataset, error)
	// Retry classifies an error of one of the source's calls: whether a retry may succeed.
	Retry(err error) Retry
}

// Dataset is one version of a dataset, which does not change. It is safe for concurrent use and need not be closed.
type Dataset interface {
	// Schema is the schema of every batch. It must not be modified.
	Schema() *arrow.Schema
	// Fetch prefetches the bytes of a split, unless they are on a local disk. It decodes nothing. ctx also applies to the reads of
	// Batches. If window is above 0 it prefetches nothing: Batches reads about so many bytes of each column at a time.
	Fetch(ctx context.Context, s Split, window int64) (Fetched, error)
}

// Planning is who makes a plan and who watches it. Each field may be nil.
type Planning struct {
	// Progress is called after one or more files were planned; calls are never concurrent.
	Progress func(done, total int)
	// Cut cuts splits where the shares of data nodes end, before their deleted rows are counted.
	Cut func([]Split) []Split
	// Others has other processes take part: until ctx ends it calls work, in a goroutine of its own, for each that can open v. It returns
	// when all calls have returned.
	Others func(ctx context.Context, v Version, work func(FilePlanner))
}

// FilePlanner plans data files of one version of a dataset. A Dataset may be one.
type FilePlanner interface {
	// PlanFiles returns the splits of data files in order. Of files only File, FileSize, Sequence and FirstRowID are set, and Rows to those
	// of the whole file.
	PlanFiles(ctx context.Context, files []Split) ([]Split, error)
}

// Fetched is a split whose bytes were prefetched. It is not safe for concurrent use; the caller closes it.
type Fetched interface {
	// Batches decodes the rows of the split in order. The sequence ends with an error, or when every row was yielded. Each call
	// decodes again and yields the same batches. The caller releases each batch. room is called with the memory for pages before they are
	// decoded, and with a negative number when it is free again; its error ends the sequence. Nil: pages may take 128 MiB.
	Batches(ctx context.Context, room func(bytes int64) error) iter.Seq2[Batch, error]
	// Report returns what Batches found.
	Report() Report
	// Close frees the prefetched bytes; batches stay valid.
	Close()
}

// Report is what decoding a split found.
type Report struct {
	// Direct and General are how many columns were decoded with specialized decoders, and how many with slower, general ones.
	Direct, General int
	// Differences lists statistics in the dataset's metadata (counts, null counts, bounds) that contradict the decoded rows. None of them
	// made a row be left out.
	Differences []string
}

// Batch is rows of a split.
type Batch struct {
	// RecordBatch has the dataset's schema and at least one row.
	arrow.RecordBatch
	// Keep has a bit for every row, least significant bit first: rows whose bit is unset are deleted or don't match the filter. At
	// least one bit is set. Nil: all rows are kept.
	Keep []byte
}

// Split is a row group of a data file, or a range of its rows, which is fetched and decoded as a unit. It is plain data that denotes
// the same rows in every process that opened the same Version.
type Split struct {
	File     string `json:"file"`      // its URI
	FileSize int64  `json:"file_size"` // bytes
	// Version is the value of objstore.File.Version at the time of planning; empty if the store does not tell.
	Version string `json:"version,omitempty"`
	// Sequence is the number of the change that added the file; 0 if the source counts none.
	Sequence int64 `json:"sequence"`
	// FirstRowID is the row id of the file's first row; nil if the file has none.
	FirstRowID *int64 `json:"first_row_id,omitempty"`
	RowGroup   int    `json:"row_group"`
	// Start and Length are the row group's bytes in the file.
	Start  int64 `json:"start"`
	Length int64 `json:"length"`
	// First is the index of the split's first row within the row group.
	First int64 `json:"first,omitempty"`
	// Rows is the number of rows before deletes and filter.
	Rows int64 `json:"rows"`
	// Bytes is an estimate of the size of the served columns as Arrow, before deletes and filter.
	Bytes int64 `json:"bytes"`
	// Exact says that planning has counted the rows: Batches yields Rows-Deleted rows or an error. Otherwise deletes or a filter apply, and only
	// decoding tells how many rows are left.
	Exact bool `json:"exact"`
	// Deleted is how many of the rows are deleted, if Exact; negative while they have to be counted again, since the split was cut.
	Deleted int64 `json:"deleted,omitempty"`
}

// String names the split in messages.
func (s Split) String() string { return fmt.Sprintf("%s row group %d", s.File, s.RowGroup) }

// End is the row group's row after the split's last one.
func (s Split) End() int64 { return s.First + s.Rows }

// Kept is the number of rows after deletes and filter; -1 if only decoding tells.
func (s Split) Kept() int64 {
	if !s.Exact || s.Deleted < 0 {
		return -1
	}
	return s.Rows - s.Deleted
}

// Part returns rows [first, first+rows) of a split that is a whole row group; bytes is their part of Bytes.
func (s Split) Part(first, rows, bytes int64) Split {
	if rows < s.Rows && s.Deleted > 0 {
		s.Deleted = -1
	}
	s.First, s.Rows, s.Bytes = first, rows, bytes
	return s
}

// Version identifies one version of a dataset and the selection that is cached. Another process with the same source can open the
// same rows with it.
type Version struct {
	Pin       json.RawMessage `json:"pin"`
	Selection json.RawMessage `json:"selection"`
}

// NewPlan returns a plan without schema and splits. pin and selection become its Version, as JSON.
func NewPlan(of Identity, pin, selection any) (*Plan, error) {
	p := &Plan{Identity: of}
	var err error
	if p.Version.Pin, err = json.Marshal(pin); err == nil {
		p.Version.Selection, err = json.Marshal(selection)
	}
	if err != nil {
		return nil, fmt.Errorf("encode the version of a plan: %w", err)
	}
	return p, nil
}

// Identity describes a version to people and clients.
type Identity struct {
	UUID     string   // of the dataset
	Snapshot int64    // 0 without rows: the dataset may have none
	Filter   string   // as given in the request; "" if there is none
	Columns  []string // as given in the request; nil: all
}

// Plan is a planned version of a dataset.
type Plan struct {
	Version  Version
	Identity Identity
	Schema   *arrow.Schema
	Splits   []Split // in the order of their rows
}

// Retry says whether a retry may succeed.
type Retry int

const (
	// Never means that it would fail in the same way each time.
	Never Retry = iota
	// OnceMended means that a user can remove the cause without changing the dataset, such as missing permissions or a missing file.
	OnceMended
	// Soon means that the cause may disappear by itself, such as a store that is unavailable, overloaded or slow.
	Soon
)
