// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	pq "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	ice "github.com/apache/iceberg-go"

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

// TestRoomOfWideValues reads nulls of a fixed width of 4 MiB, which take no room in the file: the memory of a batch is reserved.
func TestRoomOfWideValues(t *testing.T) {
	wide := ice.NestedField{ID: 1, Name: "wide", Type: ice.FixedTypeOf(4 << 20)}
	o := must(t, write(t, arrowSchema(t, []ice.NestedField{wide}), slices.Repeat([]string{`{"wide":null}`}, 50)), wide)
	section, used := o.footer.Whole(0), int64(0)
	section.Room = func(n int64) error {
		used = max(used, n)
		return nil
	}
	r, err := parquet.NewRowReader(t.Context(), o.projection, o.file, section, 4, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if used != 4*4<<20-8<<20 {
		t.Errorf("%d bytes were reserved for a batch of 4 values, want their 16 MiB without the 8 MiB of a usual batch", used)
	}
}
