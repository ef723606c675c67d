// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"io/fs"
	"os"
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
