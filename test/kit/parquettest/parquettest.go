// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package parquettest writes Parquet files for tests.
package parquettest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// Write returns a file with the rows of rec, written by arrow-go.
func Write(t testing.TB, rec arrow.RecordBatch, properties *parquet.WriterProperties, types pqarrow.ArrowWriterProperties) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(rec.Schema(), &out, properties, types)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// WithCRC returns a PageHeader in Thrift's compact protocol with field 4, the CRC of the page, inserted between field 3 and the next.
func WithCRC(header []byte, crc uint32) []byte {
	at := 0
	for range 3 { // each field is one byte with its id and type, and a varint
		_, n := binary.Uvarint(header[at+1:])
		at += 1 + n
	}
	out := append(bytes.Clone(header[:at]), 0x15)
	out = binary.AppendVarint(out, int64(int32(crc)))
	out = append(out, header[at]-0x10) // the field id is relative to the previous field, so it is one less now
	return append(out, header[at+1:]...)
}
