// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"
	"github.com/apache/thrift/lib/go/thrift"
)

// unreadable maps the index of a top-level column of a file to the reason why it cannot be read.
type unreadable map[int]error

// footerTail is the length of the footer's own length and the magic.
const footerTail = 8

// withoutUnreadable parses a footer that arrow-go rejects because of some columns, such as those with a logical type newer than
// arrow-go. In the result these columns have no logical types, so that the others can be read.
func withoutUnreadable(ctx context.Context, f io.ReaderAt, size int64) (_ *metadata.FileMetaData, _ unreadable, err error) {
	defer RecoverError(&err)
	var tail [footerTail]byte
	if _, err := f.ReadAt(tail[:], size-footerTail); err != nil {
		return nil, nil, err
	}
	length := int64(binary.LittleEndian.Uint32(tail[:]))
	if length > size-footerTail {
		return nil, nil, io.ErrUnexpectedEOF
	}
	var meta metadata.FileMetaData
	meta.FileMetaData = newLike(meta.FileMetaData)
	text := thrift.NewStreamTransportR(io.NewSectionReader(f, size-footerTail-length, length))
	if err := meta.Read(ctx, thrift.NewTCompactProtocolConf(text, nil)); err != nil {
		return nil, nil, err
	}
	bad, err := plainTypes(&meta)
	if err != nil {
		return nil, nil, err
	}
	plain := thrift.NewTMemoryBuffer()
	if err := meta.Write(ctx, thrift.NewTCompactProtocolConf(plain, nil)); err != nil {
		return nil, nil, err
	}
	out, err := metadata.NewFileMetaData(plain.Bytes(), nil)
	return out, bad, err
}

// plainTypes removes the logical types of the columns that arrow-go cannot represent.
func plainTypes(meta *metadata.FileMetaData) (unreadable, error) {
	bad := unreadable{}
	elements := meta.FileMetaData.Schema
	if len(elements) == 0 {
		return nil, errors.New("it has no schema")
	}
	root, one := *elements[0], int32(1)
	root.NumChildren = &one
	check := func(at, end int) (err error) { // of a schema with one column
		defer RecoverError(&err)
		node, err := schema.FromParquet(append(append(elements[:0:0], &root), elements[at:end]...))
		if err != nil {
			return err
		}
		_, err = pqarrow.NewSchemaManifest(schema.NewSchema(node.(*schema.GroupNode)), nil, nil)
		return err
	}
	for i, at := 0, 1; at < len(elements); i++ {
		end := at + 1
		for open := elements[at].GetNumChildren(); open > 0 && end < len(elements); end++ {
			open += elements[end].GetNumChildren() - 1
		}
		if err := check(at, end); err != nil {
			bad[i] = err
			for _, e := range elements[at:end] {
				if e.IsSetLogicalType() && e.GetLogicalType().CountSetFieldsLogicalType() == 0 {
					bad[i] = fmt.Errorf("the file's logical type of %s %q is not known here", physicalName(e.IsSetType(), e.GetType()), e.GetName())
				}
				e.LogicalType, e.ConvertedType = nil, nil
			}
		}
		at = end
	}
	return bad, nil
}

// physicalName is the physical type of a schema element, which groups lack.
func physicalName(set bool, physical fmt.Stringer) string {
	if !set {
		return "group"
	}
	return physical.String()
}

// newLike returns a new T, for a type whose package is internal to arrow-go.
func newLike[T any](*T) *T { return new(T) }
