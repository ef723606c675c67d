// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// poison overwrites memory when it is freed, so that use after free shows.
type poison struct{ memory.Allocator }

func (p poison) Free(b []byte) {
	all := b[:cap(b)]
	for i := range all {
		all[i] = 0xa5
	}
	p.Allocator.Free(b)
}

func (p poison) Reallocate(size int, b []byte) []byte {
	out := p.Allocate(size)
	copy(out, b)
	p.Free(b)
	return out
}

// TestMemory reads tables of all kinds with three allocators stacked: one that detects leaks, one that overwrites freed memory, and
// the one used in production.
func TestMemory(t *testing.T) {
	w := icetest.Local(t)
	for name, made := range map[string]*icetest.Table{
		"plain": w.Plain("plain", 2, 2, 3000, 1000), "primitives": w.Primitives("primitives", 2), "nested": w.Nested("nested", 3),
		"positions": w.Deleted("positions", 2), "vectors": w.Deleted("vectors", 3), "equal": w.EqualDeleted("equal", 2), "evolved": w.Evolved("evolved", 2),
	} {
		for kind, filter := range map[string]string{"all": "", "filter": "id >= 2 AND id <> 5"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				tbl := openTable(t, made.Metadata(), Selection{Filter: filter})
				buffers := source.NewMappedBuffers(16 << 20)
				defer buffers.Close()
				checked := memory.NewCheckedAllocator(poison{buffers})
				tbl.Mem = checked
				defer checked.AssertSize(t, 0)
				var got []string
				for _, s := range planOf(t, tbl) {
					f, err := tbl.Fetch(t.Context(), s, 0)
					if err != nil {
						t.Fatal(err)
					}
					for rec, err := range keptOf(t.Context(), f) {
						if err != nil {
							t.Fatal(err)
						}
						got = append(got, icetest.JSON(t, rec)...)
						rec.Release()
					}
					for rec, err := range keptOf(t.Context(), f) { // abandoned before the end
						if err != nil {
							t.Fatal(err)
						}
						rec.Release()
						break
					}
					f.Close()
				}
				want := made.Rows()
				if filter != "" {
					want = made.Where(func(r icetest.Row) bool { return r["id"].(int) >= 2 && r["id"].(int) != 5 })
				}
				if diff := cmp.Diff(want, sorted(got)); diff != "" {
					t.Errorf("rows (-want +got):\n%.2000s", diff)
				}
			})
		}
	}
}
