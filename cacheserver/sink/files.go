// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/codec"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/put/commit"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
)

const (
	// fileBytes is about how many bytes of rows a file has. One part may take several files.
	fileBytes = 32 << 20
	// fileMemory is the memory of a file that is being written: pages, and what is compressed.
	fileMemory = 2*fileBytes + 8<<20
)

// order tells data nodes which files to write. It depends on the table and the dataset only, so carrying it out again writes the same files.
type order struct {
	Table   string      `json:"table"`
	Prefix  string      `json:"prefix"`  // start of the URI of each file; part and file numbers follow
	Schema  *ice.Schema `json:"schema"`  // schema of the files: the table's fields in the order of the dataset's columns
	Spec    int         `json:"spec"`    // id of the table's partition spec, which has no fields
	Version int         `json:"version"` // format version of the table
}

// partitions is the partition spec of the files.
func (o *order) partitions() ice.PartitionSpec { return ice.NewPartitionSpecID(o.Spec) }

// Write implements commit.Tables.
func (s *Tables) Write(ctx context.Context, text []byte, schema *arrow.Schema, parts iter.Seq[commit.Part], each func([]byte) error) error {
	o := &order{}
	if err := json.Unmarshal(text, o); err != nil {
		return commit.Refused("the order to write files: %w", err)
	}
	store, err := s.storeOf(ctx, o)
	if err != nil {
		return err
	}
	if err := s.Budget.Reserve(fileMemory); err != nil {
		return err
	}
	defer s.Budget.Release(fileMemory)
	for part := range parts {
		w := &partWriter{order: o, store: store, schema: withIDs(schema, o.Schema), each: each, part: part.Number}
		err := w.all(ctx, part.Batches)
		if err != nil && !w.passing && ctx.Err() == nil {
			return commit.Refused("part %d: %w", part.Number, err)
		}
		if err != nil {
			return fmt.Errorf("part %d: %w", part.Number, err)
		}
	}
	return nil
}

// storeOf is the object store of the table, with the credentials that the catalog hands out for it, if it does.
func (s *Tables) storeOf(ctx context.Context, o *order) (*objstore.Store, error) {
	if s.Location.CatalogURI == "" {
		return s.Store, nil
	}
	id, err := identifier(o.Table)
	if err != nil {
		return nil, err
	}
	t, err := s.load(ctx, id)
	if err != nil {
		return nil, err
	}
	defer t.close()
	return t.catalog.Store(o.Prefix)
}

// partWriter writes the files of a part.
type partWriter struct {
	order  *order
	store  *objstore.Store
	schema *arrow.Schema
	each   func([]byte) error
	part   int

	passing bool                // the last error was the store's, and may be temporary
	written int                 // number of files that are stored
	bytes   int64               // of rows in file
	file    *pqarrow.FileWriter // the file that is being written; nil between files
	out     bytes.Buffer
}

func (w *partWriter) all(ctx context.Context, batches iter.Seq2[arrow.RecordBatch, error]) error {
	for batch, err := range batches {
		if err == nil {
			err = w.add(batch)
		}
		if err == nil && w.bytes >= fileBytes {
			err = w.finish(ctx)
		}
		if err != nil {
			return err
		}
	}
	return w.finish(ctx)
}

// add writes a batch to the file.
func (w *partWriter) add(batch arrow.RecordBatch) (err error) {
	if w.file == nil {
		w.out.Reset()
		properties := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd), parquet.WithMaxRowGroupLength(1<<40))
		if w.file, err = pqarrow.NewFileWriter(w.schema, &w.out, properties, pqarrow.DefaultWriterProps()); err != nil {
			return err
		}
	}
	named, err := relabel(batch, w.schema)
	if err != nil {
		return err
	}
	defer named.Release()
	for _, c := range batch.Columns() {
		w.bytes += int64(c.Data().SizeInBytes())
	}
	return w.file.WriteBuffered(named)
}

// finish ends the file, if there is one, and stores it.
func (w *partWriter) finish(ctx context.Context) error {
	if w.file == nil {
		return nil
	}
	if err := w.file.Close(); err != nil {
		return err
	}
	uri := fmt.Sprintf("%s%05d-%05d.parquet", w.order.Prefix, w.part, w.written)
	if err := w.store.Write(ctx, uri, w.out.Bytes()); err != nil {
		w.passing = errors.Is(err, objstore.ErrUnavailable)
		return err
	}
	w.file, w.bytes, w.written = nil, 0, w.written+1
	of, err := table.FileToDataFile(ctx, iceberg.InMemory(uri, w.out.Bytes()), uri, w.order.Schema, w.order.partitions(), 0, nil)
	if err != nil {
		return err
	}
	encoded, err := codec.EncodeDataFile(of, w.order.partitions(), w.order.Schema, w.order.Version)
	if err != nil {
		return err
	}
	return w.each(encoded)
}
