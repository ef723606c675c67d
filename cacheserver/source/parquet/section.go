// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"context"
	"fmt"
	"sort"

	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/parquet/decode"
)

// Section is the rows [first, end) of a row group, and the pages that contain them.
type Section struct {
	group      int
	first, end int64
	// Pages maps Parquet columns to the data pages of the rows. For a column that is not in it the whole chunk is read, and rows
	// before first are dropped.
	Pages map[int]SectionPages
	// Window is how many bytes of a column chunk are read at a time, where they are not in memory; 0: a default.
	Window int64
	// Room is called with the memory for pages before they are decoded, and with a negative number when it is free again. An error is returned
	// in place of the rows. Nil: there is room for usualRoom bytes.
	Room func(bytes int64) error
}

// usualRoom is how many bytes of pages a reader of rows may have at a time, unless its section says.
const usualRoom = 128 << 20

// roomFor returns a Section.Room of limit bytes.
func roomFor(limit int64) func(int64) error {
	used := int64(0)
	return func(bytes int64) error {
		if bytes > limit-used { // fits: used is at most limit
			return fmt.Errorf("no room for it beside %d bytes of other pages, at most %d are used: write the file with smaller pages", used, limit)
		}
		used += bytes
		return nil
	}
}

// SectionPages are consecutive data pages of a column chunk.
type SectionPages struct {
	decode.Pages
	dictionary int64 // length of the chunk before its first data page
}

// Whole returns the section of all rows of a row group.
func (f *Footer) Whole(group int) Section { return Section{group: group, end: f.Rows(group)} }

// Locate locates the rows [first, end) of a row group. Unless they are all rows of the group, it reads the offset indexes of the
// columns. The caller must recover panics over a corrupt index.
func (p *Projection) Locate(ctx context.Context, file *objstore.File, group int, first, end int64) (Section, error) {
	f, s := p.footer, Section{group: group, first: first, end: end, Pages: map[int]SectionPages{}}
	if first == 0 && end == f.Rows(group) {
		return s, nil
	}
	indexes := map[int]objstore.Range{}
	var ranges []objstore.Range
	for _, c := range f.columns {
		at, field, ok := f.leafColumn(c)
		if !ok || !p.leaves[at] || !decode.Covers(f.meta.Schema.Column(at), field) {
			continue
		}
		chunk := f.meta.RowGroups[group].Columns[at]
		if r := (objstore.Range{Offset: chunk.GetOffsetIndexOffset(), Length: int64(chunk.GetOffsetIndexLength())}); r.Length > 0 {
			indexes[at] = r
			ranges = append(ranges, r)
		}
	}
	if err := file.Prefetch(ctx, ranges); err != nil {
		return s, err
	}
	for at, r := range indexes {
		pages, ok, err := s.pagesOf(ctx, file, f, at, r)
		if err != nil {
			return s, fmt.Errorf("column %q: offset index: %w", f.meta.Schema.Column(at).Path(), err)
		}
		if ok {
			s.Pages[at] = pages
		}
	}
	return s, nil
}

// pagesOf reads the offset index of a column, which is at r, and finds the pages of the section's rows. It returns false if the index
// does not describe all pages of the column chunk: the whole chunk must be read then.
func (s Section) pagesOf(ctx context.Context, file *objstore.File, f *Footer, at int, r objstore.Range) (SectionPages, bool, error) {
	chunk, err := f.chunk(s.group, at)
	if err != nil {
		return SectionPages{}, false, err
	}
	text := make([]byte, r.Length)
	if _, err := file.ReadAt(text, r.Offset); err != nil {
		return SectionPages{}, false, err
	}
	locations, err := pageLocations(ctx, text)
	if err != nil {
		return SectionPages{}, false, fmt.Errorf("it cannot be read: %w: restore or rewrite the file", err)
	}
	rows := f.Rows(s.group)
	if !covered(chunk, rows, locations) {
		return SectionPages{}, false, nil
	}
	first := sort.Search(len(locations), func(i int) bool { return locations[i].FirstRowIndex > s.first }) - 1
	end, endRow := chunk.Offset+chunk.Length, rows
	if next := sort.Search(len(locations), func(i int) bool { return locations[i].FirstRowIndex >= s.end }); next < len(locations) {
		end, endRow = locations[next].Offset, locations[next].FirstRowIndex
	}
	from := locations[first]
	return SectionPages{
		Pages:      decode.Pages{Offset: from.Offset, Length: end - from.Offset, Row: from.FirstRowIndex, Rows: endRow - from.FirstRowIndex}, // fits: covered has compared them
		dictionary: locations[0].Offset - chunk.Offset,                                                                                       // fits: covered has compared them
	}, true, nil
}

// covered reports whether pages are contiguous in their chunk and non-empty, starting with row 0.
func covered(chunk objstore.Range, rows int64, pages []*metadata.PageLocation) bool {
	at, row := chunk.Offset, int64(-1)
	for _, p := range pages {
		end := p.Offset + int64(p.CompressedPageSize)
		if p.Offset < at || end <= p.Offset || end > chunk.Offset+chunk.Length || p.FirstRowIndex <= row || p.FirstRowIndex >= rows {
			return false
		}
		at, row = end, p.FirstRowIndex
	}
	return len(pages) > 0 && pages[0].FirstRowIndex == 0
}
