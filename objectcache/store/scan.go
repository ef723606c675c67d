// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Scan builds the index from the folder's names and inodes, without opening files. The order of use comes from the file system (the
// later of access and modification time). Scan removes what a killed process left in tmp/, buckets without a quota, and objects that
// exceed the limits. A link, named pipe, socket or device among the files is an error: no Store creates one, and opening it could
// block or lead outside the folder. Only Stats may be called before Scan returns.
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
		b, known := s.index.byName[bucket.Name()]
		s.mu.Unlock()
		if !known {
			s.count(os.RemoveAll(filepath.Join(objects, bucket.Name())))
			continue
		}
		if _, err := isFolder(filepath.Join(objects, b.name)); err != nil {
			return err
		}
		if err := (scanner{s}).scanBucket(ctx, b); err != nil {
			return err
		}
	}
	scanner{s}.applyLimits()
	return nil
}

// scanner builds the index of a Store.
type scanner struct{ *Store }

// scanBucket lists a bucket's objects, in several subfolders concurrently: parallel requests are faster on a disk when nothing is
// cached.
func (s scanner) scanBucket(ctx context.Context, b *bucketState) error {
	var adding sync.Mutex // held while the index exceeds its limit, so that no scanner adds more
	add := func(e entry) {
		adding.Lock()
		defer adding.Unlock()
		s.mu.Lock()
		s.index.add(e)
		excess := s.index.sums().objects - s.index.maxObjects
		s.mu.Unlock()
		if excess > s.index.maxObjects/8 { // not after each object, since sorting is expensive
			s.applyLimits()
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4 * runtime.GOMAXPROCS(0))
	for i := range 256 {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return s.scanFolder(b, byte(i), add)
		})
	}
	return group.Wait()
}

// applyLimits removes the least recently used objects that exceed the limits. If the file can't be removed, the object is still
// removed from the index: the memory for the index is bounded in any case.
func (s scanner) applyLimits() {
	s.mu.Lock()
	s.index.sortByUse()
	s.mu.Unlock()
	for s.trim() != nil {
		s.mu.Lock()
		if id, ok := s.index.oldest(s.index.evictFrom(nil, 0, 0)); ok {
			s.index.remove(id)
			s.mu.Unlock()
			continue
		}
		s.mu.Unlock()
		return
	}
}

// scanFolder lists the objects whose identity begins with the byte first. Files that can't be read are counted and skipped.
func (s scanner) scanFolder(b *bucketState, first byte, add func(entry)) error {
	prefix := hex.EncodeToString([]byte{first})
	path := filepath.Join(s.dir, "objects", b.name, prefix)
	if there, err := isFolder(path); err != nil || !there {
		return err
	}
	folder, err := os.Open(path)
	if err != nil {
		s.count(err)
		return nil
	}
	defer func() { _ = folder.Close() }() // opened for reading: closing can't lose data
	for {
		names, err := folder.Readdirnames(1024)
		for _, name := range names {
			e, ok, err := statObject(int(folder.Fd()), prefix, name)
			if err != nil {
				return fmt.Errorf("%s: %w", filepath.Join(path, name), err)
			}
			if ok {
				e.bucket, e.size = b.number, s.blocks(e.size)
				add(e)
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

// isFolder reports whether path is a folder. It is an error if it is anything else.
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

// statObject reads a file's inode; ok is false if its name is not that of an object.
func statObject(folder int, prefix, name string) (e entry, ok bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(folder, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) { // it was removed meanwhile
		return e, false, nil
	}
	if err != nil {
		return e, false, fmt.Errorf("%s: %w", name, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return e, false, nil
	default:
		return e, false, errForeign
	}
	digits := prefix + name
	if len(digits) != hex.EncodedLen(len(e.id)) {
		return e, false, nil
	}
	_, notHex := hex.Decode(e.id[:], []byte(digits))
	e.size, e.stamp = st.Size, uint32(max(st.Atim.Sec, st.Mtim.Sec))
	return e, notHex == nil, nil
}
