// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// TestForeignNumbers has batches of one column with numbers at which checks by subtraction or multiplication overflow.
func TestForeignNumbers(t *testing.T) {
	text, long := arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString
	list := arrow.ListOf(arrow.PrimitiveTypes.Int8)
	offsets32 := func(o ...int32) []byte { return arrow.Int32Traits.CastToBytes(o) }
	offsets64 := func(o ...int64) []byte { return arrow.Int64Traits.CastToBytes(o) }
	pairs := arrow.MapOf(arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int8)
	entries := offsets32(0, 2)
	for name, c := range map[string]struct {
		of      arrow.DataType
		lengths []int64 // by node, the rows first
		buffers [][]byte
		says    string // "": it is accepted
	}{
		"offsets that rise":            {text, []int64{3}, [][]byte{nil, offsets32(0, 60, 60, 100), make([]byte, 100)}, ""},
		"offsets that fall":            {text, []int64{3}, [][]byte{nil, offsets32(0, 60, 59, 100), make([]byte, 100)}, "fall"},
		"offsets whose step overflows": {text, []int64{4}, [][]byte{nil, offsets32(0, 60, math.MinInt32, -1000, 100), make([]byte, 100)}, "fall"},
		"the same of 64 bits":          {long, []int64{4}, [][]byte{nil, offsets64(0, 60, math.MinInt64, -1000, 100), make([]byte, 100)}, "fall"},
		"the same of lists":            {list, []int64{4, 100}, [][]byte{nil, offsets32(0, 60, math.MinInt32, -1000, 100), nil, make([]byte, 100)}, "fall"},
		"offsets that begin below 0":   {text, []int64{1}, [][]byte{nil, offsets32(-1, 1), make([]byte, 1)}, "fall or pass"},
		"offsets that end behind":      {text, []int64{1}, [][]byte{nil, offsets32(0, 2), make([]byte, 1)}, "pass 1"},
		"too few offsets":              {text, []int64{2}, [][]byte{nil, offsets32(0, 1), make([]byte, 1)}, "8 bytes, need 12"},
		"too short a bitmap":           {text, []int64{9}, [][]byte{{0xff}, make([]byte, 40), nil}, "validity of 1 bytes, need 2"},
		"wide values":                  {&arrow.FixedSizeBinaryType{ByteWidth: math.MaxInt32}, []int64{1 << 24}, [][]byte{nil, make([]byte, 8)}, "need 36028797002186752"},
		"wide lists":                   {arrow.FixedSizeListOf(math.MaxInt32, arrow.PrimitiveTypes.Int8), []int64{1 << 24, 8}, [][]byte{nil, nil, make([]byte, 8)}, "8 values, want 36028797002186752"},
		"more rows than a batch has":   {text, []int64{1<<24 + 1}, [][]byte{nil, nil, nil}, "at most 16777216"},
		"a negative length":            {list, []int64{1, -1}, [][]byte{nil, offsets32(0, 0), nil, nil}, "-1 values"},
		"a map":                        {pairs, []int64{1, 2, 2, 2}, [][]byte{nil, entries, nil, nil, {1, 2}, nil, {3, 4}}, ""},
		"a map with bitmaps":           {pairs, []int64{1, 2, 2, 2}, [][]byte{nil, entries, {3}, {3}, {1, 2}, {1}, {3, 4}}, ""},
		"a null entry of a map":        {pairs, []int64{1, 2, 2, 2}, [][]byte{nil, entries, {1}, nil, {1, 2}, nil, {3, 4}}, "null entry"},
		"a null key of a map":          {pairs, []int64{1, 2, 2, 2}, [][]byte{nil, entries, nil, {2}, {1, 2}, nil, {3, 4}}, "null key"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := NewLayout(arrow.NewSchema([]arrow.Field{{Name: "c", Type: c.of, Nullable: true}}, nil))
			if err != nil {
				t.Fatal(err)
			}
			batch, err := l.Batch(Foreign{Rows: c.lengths[0], Lengths: c.lengths, Nulls: make([]int64, len(c.lengths)), Buffers: c.buffers})
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want an error with %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer batch.Release()
			if err := array.ValidateRecordFull(batch); err != nil {
				t.Error(err)
			}
		})
	}
}
