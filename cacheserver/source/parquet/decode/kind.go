// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// kind is a combination of a physical type and the Arrow type that it is decoded to.
type kind struct {
	to     arrow.DataType
	width  int // bytes of a value of the physical type, if the column says so
	values func(width int) values
	// convert converts the n slots of a buffer from the physical type; nil: the bytes are the same.
	convert func(dst, src []byte, n, width int)
	size    int // bytes of a converted value
}

// kinds has a row for each combination that is supported.
var kinds = map[parquet.Type]map[arrow.Type]kind{
	parquet.Types.Boolean: {arrow.BOOL: {values: func(int) values { return &boolean{} }}},
	parquet.Types.Int32: {
		arrow.INT32: {values: four}, arrow.UINT32: {values: four}, arrow.DATE32: {values: four}, arrow.TIME32: {values: four},
		arrow.INT8: {values: four, convert: narrow[uint8], size: 1}, arrow.UINT8: {values: four, convert: narrow[uint8], size: 1},
		arrow.INT16: {values: four, convert: narrow[uint16], size: 2}, arrow.UINT16: {values: four, convert: narrow[uint16], size: 2},
		arrow.DECIMAL128: {values: four, convert: decimals[int32], size: arrow.Decimal128SizeBytes},
	},
	parquet.Types.Int64: {
		arrow.INT64: {values: eight}, arrow.UINT64: {values: eight}, arrow.TIMESTAMP: {values: eight}, arrow.TIME64: {values: eight},
		arrow.DECIMAL128: {values: eight, convert: decimals[int64], size: arrow.Decimal128SizeBytes},
	},
	parquet.Types.Float:  {arrow.FLOAT32: {values: four}},
	parquet.Types.Double: {arrow.FLOAT64: {values: eight}},
	parquet.Types.ByteArray: {
		arrow.STRING: {values: func(int) values { return &text{utf8: true} }},
		arrow.BINARY: {values: func(int) values { return &text{} }},
	},
	parquet.Types.Int96: {arrow.FIXED_SIZE_BINARY: {values: wideOf}}, // kept as 12 bytes
	parquet.Types.FixedLenByteArray: {
		arrow.FIXED_SIZE_BINARY: {values: wideOf}, arrow.FLOAT16: {values: wideOf},
		arrow.DECIMAL128: {values: wideOf, convert: bigEndian, size: arrow.Decimal128SizeBytes},
	},
}

func four(int) values         { return &fixed[uint32]{} }
func eight(int) values        { return &fixed[uint64]{} }
func wideOf(width int) values { return &wide{width: width} }

// finish converts the buffers of the physical type to those of the array. It takes them over.
func (k kind) finish(mem memory.Allocator, buffers []*memory.Buffer, n int) []*memory.Buffer {
	if k.convert == nil {
		return buffers
	}
	defer buffers[0].Release()
	out := output{mem: mem}
	out.resize(n * k.size)
	k.convert(out.bytes(), buffers[0].Bytes(), n, k.width)
	return []*memory.Buffer{out.finish()}
}

// kindOf returns the kind of a Parquet column whose Arrow type, in pqarrow, is to.
func kindOf(leaf *schema.Column, to arrow.DataType) (kind, error) {
	id := to.ID()
	if ext, ok := to.(arrow.ExtensionType); ok {
		id = ext.StorageType().ID()
	}
	k, ok := kinds[leaf.PhysicalType()][id]
	k.to, k.width = to, leaf.TypeLength()
	switch leaf.PhysicalType() {
	case parquet.Types.Int96:
		k.width = parquet.Int96SizeBytes
		fixed, isFixed := to.(*arrow.FixedSizeBinaryType)
		ok = isFixed && fixed.ByteWidth == k.width
	case parquet.Types.FixedLenByteArray:
		ok = ok && k.width > 0 && (k.convert == nil || k.width <= k.size)
	}
	if !ok {
		return k, fmt.Errorf("%s as %s: %w", leaf.PhysicalType(), to, errors.ErrUnsupported)
	}
	return k, nil
}

// narrow truncates 32-bit integers to their low bytes.
func narrow[T uint8 | uint16](dst, src []byte, n, _ int) {
	out := valuesOf[T](dst)[:n]
	for i, v := range valuesOf[uint32](src)[:n] {
		out[i] = T(v)
	}
}

// decimals converts integers to decimal128.
func decimals[T int32 | int64](dst, src []byte, n, _ int) {
	out := valuesOf[decimal128.Num](dst)[:n]
	for i, v := range valuesOf[T](src)[:n] {
		out[i] = decimal128.FromI64(int64(v))
	}
}

// bigEndian converts big-endian signed integers of width bytes, at most 16.
func bigEndian(dst, src []byte, n, width int) {
	out := valuesOf[decimal128.Num](dst)[:n]
	var word [arrow.Decimal128SizeBytes]byte
	head, tail := word[:len(word)-width], word[len(word)-width:]
	for i := range out {
		copy(tail, src[i*width:])
		fill(head, byte(int8(tail[0])>>7)) // the sign
		out[i] = decimal128.New(int64(binary.BigEndian.Uint64(word[:])), binary.BigEndian.Uint64(word[8:]))
	}
}
