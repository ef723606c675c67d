// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/glob"
	"github.com/kubeflow/datacache/cacheserver/source/hub"
)

// file is a data file.
type file struct {
	objstore.Entry
}

// mostFiles bounds the files of a table.
const mostFiles = 1_000_000

// listing is what was found at the addresses of a Location.
type listing struct {
	roots  []string // for each address, the folder that paths are relative to
	files  []file
	hidden int    // files with a name, or in a folder, that begins with _ or a dot
	others int    // files whose names don't end in .parquet
	other  string // one of them
}

// list lists the data files in the order of their rows.
func (s *Source) list(ctx context.Context) (*listing, error) {
	all := &listing{}
	seen := map[string]bool{}
	for _, uri := range s.Location.URIs {
		part, err := s.listAddress(ctx, uri)
		if err != nil {
			return nil, err
		}
		if len(s.Location.URIs) == 1 {
			all = part
		} else if again, ok := all.add(part, seen); ok {
			return nil, fmt.Errorf("file %s is named twice by %s, which would double its rows: name it once", again, s)
		}
		if len(all.files) > mostFiles {
			return nil, fmt.Errorf("%s has more than %d files: at most that many are read: write fewer, larger ones", s, mostFiles)
		}
	}
	if s.Log != nil {
		s.Log.Info("listed files", "files", len(all.files), "left out: hidden", all.hidden, "left out: no .parquet", all.others)
	}
	return all, nil
}

// add appends the files of another address. seen has the URIs of all files before; if one of them comes again, add returns it.
func (l *listing) add(part *listing, seen map[string]bool) (again string, ok bool) {
	for _, f := range part.files {
		if seen[f.URI] {
			return f.URI, true
		}
		seen[f.URI] = true
	}
	l.files = append(l.files, part.files...)
	l.roots = append(l.roots, part.roots...)
	l.hidden += part.hidden
	l.others += part.others
	return "", false
}

// listAddress lists the data files at an address, which may be that of a data set on a hub: then they are those of one commit.
func (s *Source) listAddress(ctx context.Context, uri string) (*listing, error) {
	if list, ok := strings.CutSuffix(uri, ListQuery); ok {
		return s.readList(ctx, list)
	}
	if !hub.IsAddress(uri) {
		return listOne(ctx, s.Store, uri)
	}
	address, err := hub.Parse(uri)
	if err != nil {
		return nil, err
	}
	if address.Path != "" {
		root, err := s.Store.Pin(ctx, address.Folder())
		if err != nil {
			return nil, err
		}
		return listOne(ctx, s.Store, root+address.Path)
	}
	folder, err := hub.Find(ctx, s.Store, address)
	if err != nil {
		return nil, err
	}
	if folder.Note != "" && s.Log != nil {
		s.Log.Info(folder.Note, "address", uri)
	}
	found := &listing{roots: []string{folder.Root}}
	for _, e := range folder.Files {
		found.files = append(found.files, file{e})
	}
	return found, refuse(uri, folder.Files)
}

// listOne lists the data files at an address.
func listOne(ctx context.Context, store *objstore.Store, uri string) (*listing, error) {
	root, pattern := uri, ""
	if glob.Has(uri) {
		root, pattern = glob.Split(uri)
	}
	entries, err := collect(ctx, store, root)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", uri, err)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("%s is empty: check the address", uri)
	}
	top := strings.TrimSuffix(entries[0].URI, entries[0].Path)
	if err := errors.Join(refuse(uri, entries), refuseInside(ctx, store, uri, top)); err != nil {
		return nil, err
	}
	found := &listing{roots: []string{top}}
	for _, e := range entries {
		switch {
		case e.Path != "" && isHidden(e.Path):
			found.hidden++
		case pattern != "" && !glob.Matches(pattern, e.Path):
		case pattern == "" && e.Path != "" && !strings.HasSuffix(e.Path, ".parquet"):
			found.others, found.other = found.others+1, e.URI
		default:
			found.files = append(found.files, file{e})
		}
	}
	if len(found.files) == 0 {
		return nil, noFiles(uri, pattern, found)
	}
	slices.SortFunc(found.files, func(a, b file) int { return strings.Compare(a.Path, b.Path) })
	return found, nil
}

func collect(ctx context.Context, store *objstore.Store, uri string) ([]objstore.Entry, error) {
	var entries []objstore.Entry
	for e, err := range store.List(ctx, uri) {
		if err != nil {
			return nil, err
		}
		if entries = append(entries, e); len(entries) > 2*mostFiles {
			return nil, fmt.Errorf("it has more than %d files, at most %d are read", 2*mostFiles, mostFiles)
		}
	}
	return entries, nil
}

func noFiles(uri, pattern string, found *listing) error {
	switch {
	case pattern != "":
		return fmt.Errorf("%s matches no file: check the pattern", uri)
	case found.others > 0:
		return fmt.Errorf("%s has no files whose names end in .parquet, but %d others, such as %s: name a glob such as *.parq for other names", uri, found.others, found.other)
	}
	return fmt.Errorf("%s has no files whose names end in .parquet, and %d hidden ones, whose names or folders begin with _ or a dot: check the address", uri, found.hidden)
}

// isHidden reports whether a part of a path begins with _ or a dot.
func isHidden(p string) bool {
	return p[0] == '_' || p[0] == '.' || strings.Contains(p, "/_") || strings.Contains(p, "/.")
}

var (
	metadataFile = regexp.MustCompile(`(^|/)metadata/[^/]*\.metadata\.json(\.gz|\.zstd)?$`)
	hubPart      = regexp.MustCompile(`(^|/)partial-[^/]+/[0-9]+\.parquet$`)
	started      = regexp.MustCompile(`(^|/)_started_[^/]+$`)
)

// refuse returns an error if the files belong to a table of another format, whose log says which of their rows count, or if a writer has
// not finished them.
func refuse(uri string, entries []objstore.Entry) error {
	var iceberg string
	committed := map[string]bool{}
	for _, e := range entries {
		committed[e.Path] = true
		if metadataFile.MatchString(e.Path) {
			iceberg = max(iceberg, e.URI)
		}
	}
	if iceberg != "" {
		return fmt.Errorf("%s is an Iceberg table or a part of one: read as plain files it would have rows that were deleted or replaced: name its metadata file, such as %s, as a table", uri, iceberg)
	}
	for _, e := range entries {
		dir, base := path.Split(e.Path)
		for segment := range strings.SplitSeq(dir, "/") {
			if why, ok := refused[segment]; ok {
				return fmt.Errorf("%s %s (%s)", uri, why, e.URI)
			}
		}
		if hubPart.MatchString(e.Path) {
			return fmt.Errorf("%s is a part of a dataset that the Hugging Face hub converted only to a limit (%s): its other rows are missing: name the dataset's own files", uri, e.URI)
		}
		if started.MatchString(e.Path) && !committed[dir+"_committed_"+strings.TrimPrefix(base, "_started_")] {
			return fmt.Errorf("%s is being written: %s has no _committed_ file: wait for the job that writes it; if it died, run it again or delete its files", uri, e.URI)
		}
	}
	return nil
}

// mostMarkers bounds how many files above an address are looked at.
const mostMarkers = 1000

// refuseInside returns an error if a folder, or a file, is where a table of another format keeps its files: below the folder data/ of an
// Iceberg table, or in partitions of a Delta or Hudi table, whose logs lie above it. A folder that can't be listed says nothing.
func refuseInside(ctx context.Context, store *objstore.Store, uri, top string) error {
	at, partitions := strings.LastIndexByte(top, '/'), true
	for at > 0 {
		above := strings.LastIndexByte(top[:at], '/')
		if above <= 0 || top[above-1] == '/' { // nothing but the bucket is left
			return nil
		}
		var markers []string
		if top[above+1:at] == "data" {
			markers = []string{"metadata"}
		}
		if partitions = partitions && strings.Contains(top[above+1:at], "="); partitions {
			markers = append(markers, "_delta_log", ".hoodie")
		}
		for _, marker := range markers {
			var found []objstore.Entry
			for e, err := range store.List(ctx, top[:above+1]+marker) {
				if err != nil || len(found) == mostMarkers {
					break
				}
				e.Path = path.Join(marker, e.Path)
				found = append(found, e)
			}
			if err := refuse(uri, found); err != nil {
				return err
			}
		}
		at = above
	}
	return nil
}

// refused are folders that only tables of other formats have, or only while a job writes.
var refused = map[string]string{
	"_delta_log": "is a Delta table or a part of one: read as plain files it would have rows that were deleted or replaced: name its folder as a Delta table: by --delta, spec.arrow.source.delta, or cache+delta+ before the address",
	".hoodie":    "is a Hudi table or a part of one: read as plain files it would have rows that were deleted or replaced: write its current rows to a folder of plain files",
	"_temporary": "is being written: a Spark or Hadoop job has not ended: wait for it; if it died, run it again or delete its files",
}
