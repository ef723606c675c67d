// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFile opens a file for reading. It does not follow a symbolic link or wait for the writer of a named pipe; check rejects
// anything that is not a regular file.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// syncFolder writes the names in a folder to the disk.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// isSame reports whether an open file, which may be nil, is the one that info describes.
func isSame(file *os.File, info fs.FileInfo) bool {
	if file == nil {
		return false
	}
	own, err := file.Stat()
	return err == nil && os.SameFile(own, info)
}

// stampOf combines a file's inode number and change time. Every write changes the latter, and users can't set it.
func stampOf(info fs.FileInfo) uint32 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return uint32(st.Ino)*31 + uint32(st.Ctim.Sec)*17 + uint32(st.Ctim.Nsec)
}

// folder has the objects' files. It is safe for concurrent use.
type folder struct {
	dir      string
	block    int64 // unit of disk space
	sync     bool  // see Config.Sync
	failures atomic.Int64
}

// path is the path of an object's file.
func (f *folder) path(bucket string, id identity) string {
	digits := hex.EncodeToString(id[:])
	return f.dir + "/objects/" + bucket + "/" + digits[:2] + "/" + digits[2:]
}

// blocks rounds the size of a file up to the space that it takes on the disk.
func (f *folder) blocks(size int64) int64 { return (size + f.block - 1) / f.block * f.block }

// unlink removes an object's file. The caller holds its stripe.
func (f *folder) unlink(bucket string, id identity) error {
	path := f.path(bucket, id)
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && f.sync {
		err = syncFolder(filepath.Dir(path))
	}
	if err == nil {
		return nil
	}
	f.failures.Add(1)
	return err
}

// rename moves a complete file to its place.
func (f *folder) rename(from, to string) error {
	into := filepath.Dir(to)
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) { // the first object in its folder
		if err := os.MkdirAll(into, 0o700); err != nil {
			return err
		}
		if err := os.Rename(from, to); err != nil || !f.sync {
			return err
		}
		return errors.Join(syncFolder(into), syncFolder(filepath.Dir(into)), syncFolder(filepath.Dir(filepath.Dir(into))), syncFolder(f.dir))
	}
	if err == nil && f.sync {
		err = syncFolder(into)
	}
	return err
}

// empty removes the contents of a folder.
func (f *folder) empty(path string) {
	names, err := os.ReadDir(path)
	f.count(err)
	for _, name := range names {
		f.count(os.RemoveAll(filepath.Join(path, name.Name())))
	}
}

func (f *folder) count(err error) {
	if err != nil {
		f.failures.Add(1)
	}
}
