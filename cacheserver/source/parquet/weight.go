// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"math/bits"

	"github.com/apache/arrow-go/v18/parquet"
)

// Limits of a batch.
const (
	batchBytes   = 4 << 20
	MinBatchRows = 16 // unless rows are so large that these take more than mostMinimum
	MaxBatchRows = 128 << 10
	mostMinimum  = 128 << 20
	mostWeight   = 1 << 42 // so that the weights of all columns and splits can be added
)

// Weight is an estimate of the Arrow bytes of the columns that are read. The first served of them are returned to the caller even if
// the file lacks them, and count in any case.
func (p *Projection) Weight(group, served int) int64 {
	var n int64
	for _, leaf := range p.sorted {
		n += min(leafWeight(p.footer, group, leaf), mostWeight)
	}
	for _, c := range p.columns[:served] {
		if c.from == nil {
			n += min(p.footer.Rows(group), mostWeight/8) * 8
		}
	}
	return min(max(n, 1), mostWeight)
}

// leafWeight is an estimate of the Arrow bytes of one Parquet column. Fixed-width values are counted; the lengths of strings are
// known if the writer states them or if they are PLAIN in the file, otherwise they are guessed.
func leafWeight(f *Footer, group, leaf int) int64 {
	c := f.meta.RowGroups[group].Columns[leaf].GetMetaData()
	desc := f.meta.Schema.Column(leaf)
	values := c.GetNumValues() // includes nulls and empty lists
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
		return n + values*int64(desc.TypeLength()) // fits: 2^36 values of 2^24 bytes
	case parquet.Types.ByteArray:
		return n + values*4 + stringBytes(f, group, leaf, values)
	}
	return n + values*8
}

// stringBytes is an estimate of the total length of a column's strings.
func stringBytes(f *Footer, group, leaf int, values int64) int64 {
	c := f.meta.RowGroups[group].Columns[leaf].GetMetaData()
	if s := c.GetSizeStatistics(); s != nil && s.IsSetUnencodedByteArrayDataBytes() {
		return min(max(s.GetUnencodedByteArrayDataBytes(), 0), mostWeight)
	}
	n := min(c.GetTotalUncompressedSize(), mostWeight)
	if c.IsSetDictionaryPageOffset() && c.IsSetStatistics() {
		s := c.GetStatistics()
		n = max(n, values*int64(len(s.GetMinValue())+len(s.GetMaxValue()))/2) // fits: 2^36 values, and footers have 2^26 bytes
	}
	return n
}

// BatchRows is the number of rows of a batch of about batchBytes. It is a power of two, since pqarrow's builders grow by powers of
// two.
func BatchRows(weight, rows int64) int64 {
	perRow := max(weight/max(rows, 1), 1)
	n := max(batchBytes/perRow, 1)
	pow := int64(1) << (bits.Len64(uint64(n)) - 1) // fits: 63 bits
	least := int64(MinBatchRows)
	for least > 1 && least*perRow > mostMinimum { // fits: perRow is at most mostWeight
		least /= 2
	}
	return min(max(pow, least), MaxBatchRows)
}
