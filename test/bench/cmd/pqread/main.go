// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command pqread is a plain Parquet reader for benchmarks: it measures only the cost of decoding the files.
//
// It opens each file with parquet/file, reads it completely with a pqarrow record reader (default allocator, all columns, the columns
// of a file sequentially), counts rows, and releases every batch at once or, with -keep, retains all of them until the end, as a
// cache has to. -threads files are read concurrently. It prints the number of rows.
//
// usage: pqread [flags] FILE.parquet...
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/test/bench/internal/pqfiles"
)

// kept holds the batches that -keep retains.
var kept sync.Map

func main() {
	var o pqfiles.Options
	flag.Int64Var(&o.BatchRows, "batch-rows", 8192, "rows of a record batch")
	flag.IntVar(&o.Threads, "threads", 0, "files read at the same time; 0: one a core")
	keep := flag.Bool("keep", false, "hold every batch in memory until the end")
	flag.Parse()

	var rows atomic.Int64
	err := pqfiles.Each(context.Background(), flag.Args(), o, func(_ int, b arrow.RecordBatch) error {
		rows.Add(b.NumRows())
		if *keep {
			b.Retain() // never released: the process ends
			kept.Store(b, nil)
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "pqread:", err)
		os.Exit(1)
	}
	fmt.Println(rows.Load())
}
