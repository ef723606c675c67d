// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet_test

import (
	"errors"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	pq "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// TestRoomOfReaders reads a row group with room for its pages, and with less, column by column: structs and maps are read by pqarrow. Room is
// given back, and the error names the column.
func TestRoomOfReaders(t *testing.T) {
	data := write(t, arrowSchema(t, fields()), rows(0, 100), pq.WithCompression(compress.Codecs.Zstd), pq.WithDataPageSize(1<<20), pq.WithBatchSize(1<<20))
	noRoom := errors.New("no room")
	for _, f := range fields() {
		o := must(t, data, f)
		read := func(limit int64) (peak, used int64, err error) {
			section := o.footer.Whole(0)
			section.Room = func(n int64) error {
				if used+n > limit {
					return noRoom
				}
				used += n
				peak = max(peak, used)
				return nil
			}
			r, err := parquet.NewRowReader(t.Context(), o.projection, o.file, section, 10, memory.DefaultAllocator)
			if err == nil {
				err = r.Each(t.Context(), func([]arrow.Array) error { return nil })
			}
			return peak, used, err
		}
		peak, used, err := read(1 << 30)
		if err != nil || peak < 100 || used != 0 {
			t.Errorf("column %q: %d bytes were reserved and %d are left, error %v, want at least 100 and none", f.Name, peak, used, err)
		}
		if _, used, err = read(peak - 1); !errors.Is(err, noRoom) || used != 0 {
			t.Errorf("column %q: error %v with less room, %d bytes are left", f.Name, err, used)
		}
		wantError(t, err, `column "`+f.Name)
	}
}
