// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pqfiles reads the Parquet files of a benchmark table with plain pqarrow.
package pqfiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"golang.org/x/sync/errgroup"
)

// Options configure how files are read. The zero value uses pqarrow's default batch size and one thread per core.
type Options struct {
	BatchRows int64 // maximum number of rows in a record batch; 0: pqarrow's default
	Threads   int   // number of files read concurrently; 0: GOMAXPROCS
}

// Each reads the files with Options.Threads goroutines, one file each at a time, and calls visit for every record batch, with the
// index of its file. The batches of one file are in order; calls of visit are concurrent. A batch is released when visit returns, so
// visit must retain what it keeps.
func Each(ctx context.Context, paths []string, o Options, visit func(file int, batch arrow.RecordBatch) error) error {
	if len(paths) == 0 {
		return errors.New("no Parquet files given: name at least one")
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(o.threads())
	for i, path := range paths {
		group.Go(func() error {
			if err := readFile(ctx, path, o, func(b arrow.RecordBatch) error { return visit(i, b) }); err != nil {
				return fmt.Errorf("read %s: %w", path, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Load reads all files into memory and returns their batches in file order; the caller owns them. It returns an error if there is no
// batch.
func Load(ctx context.Context, paths []string, o Options) ([]arrow.RecordBatch, error) {
	perFile := make([][]arrow.RecordBatch, len(paths))
	err := Each(ctx, paths, o, func(i int, b arrow.RecordBatch) error {
		b.Retain()
		perFile[i] = append(perFile[i], b)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all []arrow.RecordBatch
	for _, batches := range perFile {
		all = append(all, batches...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the %d files hold no rows", len(paths))
	}
	return all, nil
}

// Share returns the half-open range of n items that belong to share index of total.
func Share(index, total, n int) (lo, hi int) {
	return index * n / total, (index + 1) * n / total
}

func (o Options) threads() int {
	if o.Threads > 0 {
		return o.Threads
	}
	return runtime.GOMAXPROCS(0)
}

func readFile(ctx context.Context, path string, o Options, visit func(arrow.RecordBatch) error) (err error) {
	parquet, err := file.OpenParquetFile(path, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parquet.Close()) }()
	reader, err := pqarrow.NewFileReader(parquet, pqarrow.ArrowReadProperties{BatchSize: o.BatchRows}, memory.DefaultAllocator)
	if err != nil {
		return err
	}
	records, err := reader.GetRecordReader(ctx, nil, nil)
	if err != nil {
		return err
	}
	defer records.Release()
	for records.Next() {
		if err := visit(records.RecordBatch()); err != nil {
			return err
		}
	}
	if err := records.Err(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
