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

// Scan builds the index from the folder's names and inodes, without opening files. The order of use comes from the file
// system (the later of access and modification time). Scan removes what a killed process left in tmp/, buckets without a
// quota, and what exceeds the limits. A link, named pipe, socket or device among the files is an error: no Store creates one,
// and opening it could block or leave the folder. Only Stats may be called before Scan returns.
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
		if _, err := isFolder(filepath.Join(objects, l.name)); err != nil {
			return err
		}
		found, err := s.scanBucket(ctx, l)
		if err != nil {
			return err
		}
		slices.SortFunc(found, func(a, b scanned) int { return cmp.Compare(a.used, b.used) })
		s.mu.Lock()
		for _, f := range found {
			s.index.add(entry{id: f.id, size: f.size, bucket: l.number})
		}
		s.mu.Unlock()
	}
	s.trim()
	return nil
}

// scanned is what a file's name and inode say about an object.
type scanned struct {
	id   identity
	size int64
	used int64 // Unix time
}

// scanBucket lists a bucket's objects, several folders at a time: a disk with cold caches serves parallel requests faster.
func (s *Store) scanBucket(ctx context.Context, l *bucketState) ([]scanned, error) {
	var folders [256][]scanned
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4 * runtime.GOMAXPROCS(0))
	for i := range folders {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return s.scanFolder(l.name, byte(i), &folders[i])
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(folders[:]...), nil
}

// scanFolder lists the objects whose identity begins with first. Files that can't be read are counted and left out.
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
			f, ok, err := statObject(int(folder.Fd()), prefix, name)
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

// errForeign says that the folder contains something that no Store creates.
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

// statObject reads one file's inode; ok is false if its name is not an object's.
func statObject(folder int, prefix, name string) (f scanned, ok bool, err error) {
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

// empty removes the contents of a folder.
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
