// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// Object is a stored object, open for reading. It stays readable when the object is removed or replaced. It is not safe for
// concurrent use; the caller that opened it closes it.
type Object struct {
	file     *os.File
	from     int64 // offset of the object's bytes in the file
	size     int64
	written  time.Time
	isLayout bool
}

// Size is the length of the object in bytes.
func (o *Object) Size() int64 { return o.size }

// Written is when the object was stored, by the file system's clock.
func (o *Object) Written() time.Time { return o.written }

// IsLayout reports whether the object was stored with Writer.SetLayout.
func (o *Object) IsLayout() bool { return o.isLayout }

// Reader returns a reader of length bytes from offset first, both within the object. It is an *io.LimitedReader over an *os.File,
// which net.TCPConn's ReadFrom sends with sendfile.
func (o *Object) Reader(first, length int64) (io.Reader, error) {
	if _, err := o.file.Seek(o.from+first, io.SeekStart); err != nil {
		return nil, err
	}
	return &io.LimitedReader{R: o.file, N: length}, nil
}

// Close releases the object's file.
func (o *Object) Close() error { return o.file.Close() }

// Get opens an object for reading and makes it the most recently used. An object with a damaged file is removed and counted, and the
// error is ErrMiss.
func (s *Store) Get(bucket, key string) (*Object, error) {
	id := identify(bucket, key)
	s.mu.Lock()
	e := s.index.find(id)
	if e == nil {
		s.mu.Unlock()
		return nil, ErrMiss
	}
	s.index.touch(id)
	known := *e
	s.mu.Unlock()

	file, err := openFile(s.path(bucket, id))
	if errors.Is(err, fs.ErrNotExist) {
		s.drop(bucket, id, nil) // evicted since the lookup, or removed by another process
		return nil, ErrMiss
	}
	if err != nil {
		s.failures.Add(1) // such as too many open files, or a symbolic link; the object may be intact
		return nil, ErrMiss
	}
	o, err := s.check(file, bucket, key, known)
	if err != nil {
		s.failures.Add(1)
		s.drop(bucket, id, file)
		_ = file.Close() // opened for reading: closing can't lose data
		return nil, ErrMiss
	}
	return o, nil
}

// Has reports whether there is an object, without opening its file, and makes it the most recently used.
func (s *Store) Has(bucket, key string) bool {
	id := identify(bucket, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index.find(id) == nil {
		return false
	}
	s.index.touch(id)
	return true
}

// check verifies an open file and returns it as an Object.
func (s *Store) check(file *os.File, bucket, key string, known entry) (*Object, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errForeign
	}
	text := make([]byte, headerSize(bucket, key))
	if _, err := file.ReadAt(text, 0); err != nil {
		return nil, err
	}
	of, ok := decodeHeader(text, bucket, key)
	if !ok {
		return nil, errors.New("damaged header")
	}
	o := &Object{file: file, from: int64(len(text)), size: of.length, written: info.ModTime(), isLayout: of.isLayout}
	if info.Size() != o.from+o.size {
		return nil, fmt.Errorf("the file has %d bytes, want %d", info.Size(), o.from+o.size)
	}
	stamp, now := stampOf(info), time.Now()
	age := now.Sub(time.Unix(int64(known.verified), 0))
	if known.verified != 0 && known.stamp == stamp && s.verifyEvery > 0 && age < s.verifyEvery {
		return o, nil
	}
	// Concurrent readers of one object share one verification.
	flight := fmt.Sprintf("%x-%x", known.id, stamp)
	if _, err, _ := s.verifying.Do(flight, func() (any, error) {
		s.verifies <- struct{}{}
		defer func() { <-s.verifies }()
		return nil, o.verify(of.checksum)
	}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.index.find(known.id); e != nil && e.size == s.blocks(info.Size()) {
		e.stamp, e.verified = stamp, uint32(now.Unix())
	}
	return o, nil
}

// verify reads the object and compares its checksum.
func (o *Object) verify(checksum uint64) error {
	buf := getBuffer()
	defer putBuffer(buf)
	sum := xxh3.New()
	// Hides the WriterTo method, with which CopyBuffer would ignore buf.
	payload := struct{ io.Reader }{io.NewSectionReader(o.file, o.from, o.size)}
	n, err := io.CopyBuffer(struct{ io.Writer }{sum}, payload, *buf)
	if err != nil {
		return err
	}
	if n != o.size || sum.Sum64() != checksum {
		return fmt.Errorf("%d bytes with checksum %x, want %d with %x", n, sum.Sum64(), o.size, checksum)
	}
	return nil
}

// drop removes an object whose file is missing (damaged is nil) or damaged, unless the file was replaced meanwhile.
func (s *Store) drop(bucket string, id identity, damaged *os.File) {
	stripe := s.stripes.of(id)
	stripe.Lock()
	defer stripe.Unlock()
	if now, err := os.Lstat(s.path(bucket, id)); err == nil && !isSame(damaged, now) {
		return
	}
	s.log.changing(id)
	s.mu.Lock()
	e, found := s.index.remove(id)
	if found && damaged != nil {
		s.index.buckets[e.bucket].damaged++
	}
	s.mu.Unlock()
	_ = s.unlink(bucket, id) // counted there
}

// buffers are large, to reduce the number of system calls.
var buffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

func getBuffer() *[]byte  { return buffers.Get().(*[]byte) } //nolint:forcetypeassert // the pool contains no other type
func putBuffer(b *[]byte) { buffers.Put(b) }
