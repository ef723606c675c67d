// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/thrift/lib/go/thrift"
)

// explainFooter returns the reason why arrow-go failed to parse a footer: err, or an error that names the columns with a logical type
// newer than arrow-go, for which arrow-go panics.
func explainFooter(ctx context.Context, f io.ReaderAt, size int64, err error) error {
	names, lookErr := unknownLogicalTypes(ctx, f, size)
	if lookErr != nil || len(names) == 0 {
		return err
	}
	return fmt.Errorf("column %s: its Parquet logical type is not known here", strings.Join(names, ", column "))
}

// footerTail is the length of the footer's own length and the magic.
const footerTail = 8

// unknownLogicalTypes returns the columns of a file with a logical type that arrow-go's Thrift definition lacks.
func unknownLogicalTypes(ctx context.Context, f io.ReaderAt, size int64) (_ []string, err error) {
	defer RecoverError(&err)
	var tail [footerTail]byte
	if _, err := f.ReadAt(tail[:], size-footerTail); err != nil {
		return nil, err
	}
	length := int64(binary.LittleEndian.Uint32(tail[:]))
	if length > size-footerTail {
		return nil, io.ErrUnexpectedEOF
	}
	var meta metadata.FileMetaData
	meta.FileMetaData = newLike(meta.FileMetaData)
	text := thrift.NewStreamTransportR(io.NewSectionReader(f, size-footerTail-length, length))
	if err := meta.Read(ctx, thrift.NewTCompactProtocolConf(text, nil)); err != nil {
		return nil, err
	}
	var names []string
	for _, e := range meta.FileMetaData.Schema {
		if t := e.GetLogicalType(); e.IsSetLogicalType() && t.CountSetFieldsLogicalType() == 0 {
			names = append(names, fmt.Sprintf("%q", e.GetName()))
		}
	}
	return names, nil
}

// newLike returns a new T, for a type whose package is internal to arrow-go.
func newLike[T any](*T) *T { return new(T) }
