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
	values func() values
	// convert converts the n slots of a buffer from the physical type; nil: the bytes are the same.
	convert func(dst, src []byte, n int)
	width   int // bytes of a converted value
}

// finish converts the buffers of the physical type to those of the array. It takes them over.
func (k kind) finish(mem memory.Allocator, buffers []*memory.Buffer, n int) []*memory.Buffer {
	if k.convert == nil {
		return buffers
	}
	defer buffers[0].Release()
	out := output{mem: mem}
	out.resize(n * k.width)
	k.convert(out.bytes(), buffers[0].Bytes(), n)
	return []*memory.Buffer{out.finish()}
}

// kindOf returns the kind of a Parquet column whose Arrow type, in pqarrow, is to.
func kindOf(leaf *schema.Column, to arrow.DataType) (kind, error) {
	k := kind{to: to}
	id := to.ID()
	if ext, ok := to.(arrow.ExtensionType); ok {
		id = ext.StorageType().ID()
	}
	ok := false
	switch leaf.PhysicalType() {
	case parquet.Types.Boolean:
		k.values, ok = func() values { return &boolean{} }, id == arrow.BOOL
	case parquet.Types.Int32:
		k.values = func() values { return &fixed[uint32]{} }
		ok = k.fromInt32(id)
	case parquet.Types.Int64:
		k.values = func() values { return &fixed[uint64]{} }
		ok = k.fromInt64(id)
	case parquet.Types.Float:
		k.values, ok = func() values { return &fixed[uint32]{} }, id == arrow.FLOAT32
	case parquet.Types.Double:
		k.values, ok = func() values { return &fixed[uint64]{} }, id == arrow.FLOAT64
	case parquet.Types.ByteArray:
		k.values, ok = func() values { return &text{utf8: id == arrow.STRING} }, id == arrow.STRING || id == arrow.BINARY
	case parquet.Types.Int96: // kept as 12 bytes
		k.values = func() values { return &wide{width: parquet.Int96SizeBytes} }
		fixed, isFixed := to.(*arrow.FixedSizeBinaryType)
		ok = isFixed && fixed.ByteWidth == parquet.Int96SizeBytes
	case parquet.Types.FixedLenByteArray:
		width := leaf.TypeLength()
		k.values = func() values { return &wide{width: width} }
		ok = width > 0 && k.fromFixed(id, width)
	}
	if !ok {
		return k, fmt.Errorf("%s as %s: %w", leaf.PhysicalType(), to, errors.ErrUnsupported)
	}
	return k, nil
}

func (k *kind) fromInt32(id arrow.Type) bool {
	switch id {
	case arrow.INT32, arrow.UINT32, arrow.DATE32, arrow.TIME32:
	case arrow.INT8, arrow.UINT8:
		k.convert, k.width = narrow[uint8], 1
	case arrow.INT16, arrow.UINT16:
		k.convert, k.width = narrow[uint16], 2
	case arrow.DECIMAL128:
		k.convert, k.width = decimals[int32], arrow.Decimal128SizeBytes
	default:
		return false
	}
	return true
}

func (k *kind) fromInt64(id arrow.Type) bool {
	switch id {
	case arrow.INT64, arrow.UINT64, arrow.TIMESTAMP, arrow.TIME64:
	case arrow.DECIMAL128:
		k.convert, k.width = decimals[int64], arrow.Decimal128SizeBytes
	default:
		return false
	}
	return true
}

func (k *kind) fromFixed(id arrow.Type, width int) bool {
	switch id {
	case arrow.FIXED_SIZE_BINARY, arrow.FLOAT16:
	case arrow.DECIMAL128:
		if width > arrow.Decimal128SizeBytes {
			return false
		}
		k.convert, k.width = func(dst, src []byte, n int) { bigEndian(dst, src, n, width) }, arrow.Decimal128SizeBytes
	default:
		return false
	}
	return true
}

// narrow truncates 32-bit integers to their low bytes.
func narrow[T uint8 | uint16](dst, src []byte, n int) {
	out := valuesOf[T](dst)[:n]
	for i, v := range valuesOf[uint32](src)[:n] {
		out[i] = T(v)
	}
}

// decimals converts integers to decimal128.
func decimals[T int32 | int64](dst, src []byte, n int) {
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
