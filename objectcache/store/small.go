// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"io/fs"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// ErrNotSmall says that ReadSmall can't read an object: either it is too large for the buffer, or only Get can report what is wrong
// with it.
var ErrNotSmall = errors.New("not a small object")

// ReadSmall reads a whole object into buf, returns the part of buf that contains it, and counts that as use of the object. It is
// meant for many objects of a few KiB: each takes three system calls, and the checksum is verified at each read. An error is ErrMiss
// or ErrNotSmall.
func (s *Store) ReadSmall(bucket, key string, buf []byte) ([]byte, error) {
	of, data, err := s.readSmall(bucket, key, buf)
	if of.isLayout {
		return nil, ErrNotSmall
	}
	return data, err
}

// ReadLayout returns the bytes of a layout of at most 200 KiB. An error is ErrMiss, also for an object that is not a layout.
func (s *Store) ReadLayout(bucket, key string) ([]byte, error) {
	if !s.Has(bucket, key) {
		return nil, ErrMiss
	}
	buf := getBuffer()
	defer putBuffer(buf)
	of, data, err := s.readSmall(bucket, key, *buf)
	if err != nil || !of.isLayout {
		return nil, ErrMiss
	}
	return bytes.Clone(data), nil
}

// readSmall is ReadSmall for layouts too.
func (s *Store) readSmall(bucket, key string, buf []byte) (of header, data []byte, err error) {
	id := identify(bucket, key)
	s.mu.Lock()
	e := s.index.find(id)
	if e == nil {
		s.mu.Unlock()
		return header{}, nil, ErrMiss
	}
	size := e.size
	s.index.touch(id)
	s.mu.Unlock()
	if size > int64(len(buf)) {
		return header{}, nil, ErrNotSmall
	}
	n, err := readFile(s.path(bucket, id), buf[:size])
	from := int(headerSize(bucket, key))
	if err != nil || n < from {
		return header{}, nil, ErrNotSmall
	}
	of, ok := decodeHeader(buf[:from], bucket, key)
	data = buf[from:n]
	if !ok || of.length != int64(len(data)) || xxh3.Hash(data) != of.checksum {
		return header{}, nil, ErrNotSmall
	}
	return of, data, nil
}

// readFile reads from the start of a regular file as much as fits into buf, with fewer system calls than package os.
func readFile(path string, buf []byte) (n int, err error) {
	var fd int
	for {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading: closing can't lose data
	for {
		n, err = unix.Pread(fd, buf, 0) // fails for a pipe
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
