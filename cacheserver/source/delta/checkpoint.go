// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// checkpointRows is the number of rows of a checkpoint that are decoded at a time.
const checkpointRows = 16 << 10

// checkpoint reads the actions of a checkpoint and of its sidecars. What was removed is left out, as nothing in a checkpoint adds it.
func (l *tableLog) checkpoint(ctx context.Context, files []objstore.Entry) ([]action, error) {
	actions, err := l.readParts(ctx, files)
	if err != nil {
		return nil, err
	}
	var sidecars []objstore.Entry
	for _, a := range actions {
		if a.Sidecar == nil {
			continue
		}
		name, err := url.PathUnescape(a.Sidecar.Path)
		if err != nil {
			return nil, fmt.Errorf("sidecar %q: broken escape: restore the checkpoint", a.Sidecar.Path)
		}
		sidecars = append(sidecars, objstore.Entry{URI: strings.Join([]string{l.root, logFolder, "_sidecars", path.Base(name)}, "/")})
	}
	more, err := l.readParts(ctx, sidecars)
	return append(actions, more...), err
}

func (l *tableLog) readParts(ctx context.Context, files []objstore.Entry) ([]action, error) {
	parts := make([][]action, len(files))
	err := each(ctx, len(files), func(ctx context.Context, i int) (err error) {
		if strings.HasSuffix(files[i].URI, ".json") {
			parts[i], err = l.readJSON(ctx, files[i])
		} else if parts[i], err = l.readParquet(ctx, files[i].URI); err != nil {
			err = fmt.Errorf("%s: %w", files[i].URI, err)
		}
		return err
	})
	return slices.Concat(parts...), err
}

// nullable returns a field that may be null.
func nullable(name string, t arrow.DataType) arrow.Field {
	return arrow.Field{Name: name, Type: t, Nullable: true}
}

// The columns of checkpoints that are read, with the names and fields of action.
var (
	textType   = arrow.BinaryTypes.String
	longType   = arrow.PrimitiveTypes.Int64
	textList   = arrow.ListOfField(nullable("element", textType))
	textMap    = arrow.MapOf(textType, textType)
	vectorType = arrow.StructOf(nullable("storageType", textType), nullable("pathOrInlineDv", textType), nullable("offset", longType),
		nullable("sizeInBytes", longType), nullable("cardinality", longType))
	checkpointSchema = arrow.NewSchema([]arrow.Field{
		nullable("protocol", arrow.StructOf(nullable("minReaderVersion", longType), nullable("readerFeatures", textList))),
		nullable("metaData", arrow.StructOf(nullable("id", textType), nullable("schemaString", textType),
			nullable("partitionColumns", textList), nullable("configuration", textMap))),
		nullable("add", arrow.StructOf(nullable("path", textType), nullable("partitionValues", textMap), nullable("size", longType),
			nullable("modificationTime", longType), nullable("stats", textType), nullable("deletionVector", vectorType))),
		nullable("sidecar", arrow.StructOf(nullable("path", textType))),
	}, nil)
	checkpointColumns = column.FieldsOf(checkpointSchema.Fields())
)

// readParquet reads the actions of a file of a checkpoint.
func (l *tableLog) readParquet(ctx context.Context, uri string) (actions []action, err error) {
	defer parquet.RecoverError(&err)
	f, err := l.store.Open(ctx, uri)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: closing can't lose data
	footer, err := parquet.ReadNames(ctx, f)
	if err != nil {
		return nil, err
	}
	if footer.Total() > 2*mostFiles {
		return nil, fmt.Errorf("it has %d rows, at most %d are read: compact the table (OPTIMIZE)", footer.Total(), 2*mostFiles)
	}
	p, err := parquet.NewProjection(footer.Named(parquet.NamesOf(checkpointColumns)), checkpointColumns, func(column.Field) (*column.Value, error) { return nil, nil })
	if err != nil {
		return nil, err
	}
	for g := range footer.Groups() {
		if footer.Rows(g) == 0 {
			continue // such a row group need not have pages
		}
		if err := p.Check(g); err != nil {
			return nil, err
		}
		if err := p.Prefetch(ctx, f, footer.Whole(g)); err != nil {
			return nil, err
		}
		rows, err := parquet.NewRowReader(ctx, p, f, footer.Whole(g), checkpointRows, &source.Buffers{})
		if err == nil {
			err = rows.Each(ctx, func(columns []arrow.Array) error {
				more, err := actionsOf(columns)
				actions = append(actions, more...)
				return err
			})
		}
		if err != nil {
			return nil, err
		}
		f.Drop()
	}
	return actions, nil
}

// actionsOf returns the rows of a checkpoint's columns, which in Arrow's JSON are actions.
func actionsOf(columns []arrow.Array) ([]action, error) {
	rec := array.NewRecordBatch(checkpointSchema, columns, int64(columns[0].Len()))
	defer rec.Release()
	var lines bytes.Buffer
	if err := array.RecordToJSON(rec, &lines); err != nil {
		return nil, err
	}
	return parseActions(lines.Bytes())
}
