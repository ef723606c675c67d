// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"math/bits"

	"github.com/apache/arrow-go/v18/parquet"
)

// Bounds of a batch.
const (
	batchBytes   = 4 << 20
	MinBatchRows = 16
	MaxBatchRows = 128 << 10
)

// Weight is about how many bytes the columns that are read take as Arrow, of which the first served are returned to the caller
// even if the file lacks them.
func (p *Projection) Weight(f *Footer, group, served int) int64 {
	var n int64
	for _, leaf := range p.Leaves() {
		n += leafWeight(f, group, leaf)
	}
	for _, c := range p.columns[:served] {
		if c.from == nil {
			n += f.Rows(group) * 8
		}
	}
	return max(n, 1)
}

// leafWeight is about how many bytes one Parquet column takes as Arrow. Values
// of a fixed width are counted; lengths of strings are known if the writer tells
// them or if they lie in the file plain, else guessed.
func leafWeight(f *Footer, group, leaf int) int64 {
	c := f.meta.RowGroups[group].Columns[leaf].GetMetaData()
	desc := f.meta.Schema.Column(leaf)
	values := c.GetNumValues() // nulls and empty lists included
	n := values / 8
	if desc.MaxRepetitionLevel() > 0 {
		n += f.Rows(group) * 4 // offsets
	}
	switch desc.PhysicalType() {
	case parquet.Types.Boolean:
		return n + values/8
	case parquet.Types.Int32, parquet.Types.Float:
		return n + values*4
	case parquet.Types.FixedLenByteArray:
		return n + values*int64(desc.TypeLength())
	case parquet.Types.ByteArray:
		return n + values*4 + stringBytes(f, group, leaf, values)
	}
	return n + values*8
}

// stringBytes is about the total length of a column's strings.
func stringBytes(f *Footer, group, leaf int, values int64) int64 {
	c := f.meta.RowGroups[group].Columns[leaf].GetMetaData()
	if s := c.GetSizeStatistics(); s != nil && s.IsSetUnencodedByteArrayDataBytes() {
		return s.GetUnencodedByteArrayDataBytes()
	}
	n := c.GetTotalUncompressedSize()
	if c.IsSetDictionaryPageOffset() && c.IsSetStatistics() {
		s := c.GetStatistics()
		n = max(n, values*int64(len(s.GetMinValue())+len(s.GetMaxValue()))/2)
	}
	return n
}

// BatchRows is how many rows make a batch of about batchBytes. pqarrow's
// builders grow by powers of two, so it is one.
func BatchRows(weight, rows int64) int64 {
	perRow := max(weight/max(rows, 1), 1)
	n := max(batchBytes/perRow, 1)
	pow := int64(1) << (bits.Len64(uint64(n)) - 1)
	return min(max(pow, MinBatchRows), MaxBatchRows)
}
