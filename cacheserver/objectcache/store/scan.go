// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Scan builds the index from the folder: names and sizes alone, no file is opened. Objects keep their order of use as far
// as the file system noted it (the later of access and change time). What a killed process left in tmp/ goes, and so do
// buckets without a quota and what is over the limits. Nothing else is called before Scan has returned, but Stats.
func (s *Store) Scan(ctx context.Context) error {
	s.empty(filepath.Join(s.dir, "tmp"))
	objects := filepath.Join(s.dir, "objects")
	buckets, err := os.ReadDir(objects)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, bucket := range buckets {
		s.mu.Lock()
		l, known := s.index.byName[bucket.Name()]
		s.mu.Unlock()
		if !known {
			s.count(os.RemoveAll(filepath.Join(objects, bucket.Name())))
			continue
		}
		found, err := s.scanBucket(ctx, l)
		if err != nil {
			return err
		}
		slices.SortFunc(found, func(a, b scanned) int { return cmp.Compare(a.used, b.used) })
		s.mu.Lock()
		for _, f := range found {
			s.index.add(entry{id: f.id, size: f.size, lane: l.number})
		}
		s.mu.Unlock()
	}
	s.trim()
	return nil
}

// scanned is what a file's name and inode tell.
type scanned struct {
	id   identity
	size int64
	used int64 // Unix time
}

// scanBucket lists a bucket's objects, some folders at a time: a cold disk answers many questions as fast as one.
func (s *Store) scanBucket(ctx context.Context, l *lane) ([]scanned, error) {
	var folders [256][]scanned
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4 * runtime.GOMAXPROCS(0))
	for i := range folders {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			s.scanFolder(l.bucket, byte(i), &folders[i])
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(folders[:]...), nil
}

// scanFolder lists the objects whose identity begins with a byte. What can't be read is missing then, and counted.
func (s *Store) scanFolder(bucket string, first byte, found *[]scanned) {
	prefix := hex.EncodeToString([]byte{first})
	folder, err := os.Open(filepath.Join(s.dir, "objects", bucket, prefix))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		s.failures.Add(1)
		return
	}
	defer func() { _ = folder.Close() }() // only read from
	for {
		names, err := folder.Readdirnames(1024)
		for _, name := range names {
			if f, ok := look(int(folder.Fd()), prefix, name); ok {
				*found = append(*found, f)
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			s.failures.Add(1)
			return
		}
	}
}

// look reads one file's inode; false if it is no object of ours.
func look(folder int, prefix, name string) (scanned, bool) {
	var f scanned
	digits := prefix + name
	if len(digits) != hex.EncodedLen(len(f.id)) {
		return f, false
	}
	if _, err := hex.Decode(f.id[:], []byte(digits)); err != nil {
		return f, false
	}
	var st unix.Stat_t
	if err := unix.Fstatat(folder, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return f, false
	}
	f.size, f.used = st.Size, max(st.Atim.Sec, st.Mtim.Sec)
	return f, true
}

// empty removes what is in a folder.
func (s *Store) empty(folder string) {
	names, err := os.ReadDir(folder)
	s.count(err)
	for _, name := range names {
		s.count(os.RemoveAll(filepath.Join(folder, name.Name())))
	}
}

func (s *Store) count(err error) {
	if err != nil {
		s.failures.Add(1)
	}
}
