// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// measureEvery is the maximum age of a measurement of the disk's free space when space is reserved.
const measureEvery = time.Second

// diskLimit is how much the store may hold so that Config.MinFree of its disk stays free, whatever else is on the disk.
type diskLimit struct {
	measured       bool
	at             time.Time
	bytes, objects int64
}

// measureDisk updates the disk's limit. If statfs fails, the previous limit remains.
func (s *Store) measureDisk() {
	if s.minFree <= 0 {
		return
	}
	now := time.Now()
	s.mu.Lock()
	recent := s.index.disk.measured && now.Sub(s.index.disk.at) < measureEvery
	s.mu.Unlock()
	if recent {
		return
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		s.failures.Add(1)
		return
	}
	unit := fragment(&fs)
	free := int64(fs.Bavail)*unit - int64(s.minFree*float64(fs.Blocks)*float64(unit))
	files := int64(math.MaxInt64)
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.index.sums()
	if fs.Files > 0 { // some file systems have no fixed number of inodes
		files = held.objects + int64(fs.Ffree) - int64(s.minFree*float64(fs.Files))
	}
	s.index.disk = diskLimit{measured: true, at: now, bytes: held.bytes + free, objects: files}
}

// fragment is the unit in which a file system allocates and counts blocks.
func fragment(fs *unix.Statfs_t) int64 {
	if fs.Frsize > 0 {
		return fs.Frsize
	}
	return max(fs.Bsize, 1)
}

// blockSize is the allocation unit of a folder's file system; 4096 if it is not known.
func blockSize(dir string) int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 4096
	}
	return fragment(&fs)
}
