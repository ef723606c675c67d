// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
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
// buckets without a quota and what is over the limits. A link, named pipe, socket or device among the files is an error:
// no Store makes one, and to open it could block or lead out of the folder. Nothing else is called before Scan has
// returned, but Stats.
func (s *Store) Scan(ctx context.Context) error {
	tmp, objects := filepath.Join(s.dir, "tmp"), filepath.Join(s.dir, "objects")
	if there, err := isFolder(tmp); err != nil {
		return err
	} else if there {
		s.empty(tmp)
	}
	if there, err := isFolder(objects); err != nil || !there {
		return err
	}
	buckets, err := os.ReadDir(objects)
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
		if _, err := isFolder(filepath.Join(objects, l.bucket)); err != nil {
			return err
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
			return s.scanFolder(l.bucket, byte(i), &folders[i])
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(folders[:]...), nil
}

// scanFolder lists the objects whose identity begins with a byte. What can't be read is missing then, and counted.
func (s *Store) scanFolder(bucket string, first byte, found *[]scanned) error {
	prefix := hex.EncodeToString([]byte{first})
	path := filepath.Join(s.dir, "objects", bucket, prefix)
	if there, err := isFolder(path); err != nil || !there {
		return err
	}
	folder, err := os.Open(path)
	if err != nil {
		s.count(err)
		return nil
	}
	defer func() { _ = folder.Close() }() // only read from
	for {
		names, err := folder.Readdirnames(1024)
		for _, name := range names {
			f, ok, err := look(int(folder.Fd()), prefix, name)
			if err != nil {
				return fmt.Errorf("%s: %w", filepath.Join(path, name), err)
			}
			if ok {
				*found = append(*found, f)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			s.count(err)
			return nil
		}
	}
}

// errForeign says that something is no file or folder of a Store.
var errForeign = errors.New("a link, named pipe, socket or device in the store's folder, which holds files and folders alone: remove it")

// isFolder says whether there is a folder. It is an error if there is something else.
func isFolder(path string) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: not a folder: %w", path, errForeign)
	}
	return err == nil, err
}

// look reads one file's inode; false if it is no object of ours.
func look(folder int, prefix, name string) (f scanned, ok bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(folder, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) { // it was removed meanwhile
		return f, false, nil
	}
	if err != nil {
		return f, false, fmt.Errorf("%s: %w", name, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return f, false, nil
	default:
		return f, false, errForeign
	}
	digits := prefix + name
	if len(digits) != hex.EncodedLen(len(f.id)) {
		return f, false, nil
	}
	_, notHex := hex.Decode(f.id[:], []byte(digits))
	f.size, f.used = st.Size, max(st.Atim.Sec, st.Mtim.Sec)
	return f, notHex == nil, nil
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
