// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// reserveStep is how much a Writer reserves at a time. It does not reserve the whole announced size at once: a client that announces
// a large object and sends nothing must not evict other objects.
const reserveStep = 8 << 20

// Writer writes one object. It is not safe for concurrent use; the caller must call Commit or Abort. Errors other than ErrTooLarge
// are errors of the disk.
type Writer struct {
	store       *Store
	state       *bucketState
	bucket, key string
	announced   int64 // -1: unknown
	limit       int64 // of written
	written     int64
	reserved    int64
	objects     int64 // 1 after an object was reserved
	isLayout    bool
	file        *os.File // nil after Commit or Abort
	sum         *xxh3.Hasher
}

// Fits returns ErrTooLarge if an object of size bytes (-1: unknown) can't fit into its bucket.
func (s *Store) Fits(bucket, key string, size int64) error {
	_, _, err := s.fits(bucket, key, size)
	return err
}

func (s *Store) fits(bucket, key string, size int64) (l *bucketState, limit int64, err error) {
	s.mu.Lock()
	if l = s.index.byName[bucket]; l != nil {
		limit = min(l.quota, s.index.total)
		limit -= limit % s.block
	}
	s.mu.Unlock()
	limit -= headerSize(bucket, key)
	if limit < 0 || size > limit {
		return nil, 0, fmt.Errorf("%d bytes into bucket %s, where %d fit: %w", size, bucket, max(limit, 0), ErrTooLarge)
	}
	return l, limit, nil
}

// Create begins an object of size bytes (-1: unknown), which becomes visible at Commit. The Writer evicts least recently used objects
// when it needs room.
func (s *Store) Create(bucket, key string, size int64) (*Writer, error) {
	l, limit, err := s.fits(bucket, key, size)
	if err != nil {
		return nil, err
	}
	// The file is created first, so that nothing is evicted if the disk can't be written.
	file, err := os.CreateTemp(filepath.Join(s.dir, "tmp"), "put-")
	if err != nil {
		s.failures.Add(1)
		return nil, err
	}
	w := &Writer{store: s, state: l, bucket: bucket, key: key, announced: size, limit: limit, file: file, sum: xxh3.New()}
	if err := w.reserve(headerSize(bucket, key)); err != nil {
		w.Abort()
		return nil, err
	}
	if _, err := file.Seek(headerSize(bucket, key), io.SeekStart); err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

// Write appends to the object.
func (w *Writer) Write(p []byte) (int, error) {
	if w.written+int64(len(p)) > w.limit {
		return 0, fmt.Errorf("over %d bytes into bucket %s: %w", w.limit, w.bucket, ErrTooLarge)
	}
	need := headerSize(w.bucket, w.key) + w.written + int64(len(p))
	if err := w.reserve(need); err != nil {
		return 0, err
	}
	n, err := w.file.Write(p)
	w.written += int64(n)
	_, _ = w.sum.Write(p[:n]) // writing to a hash never fails
	if err != nil {
		w.store.failures.Add(1)
	}
	return n, err
}

// reserve reserves room for the first need bytes of the file.
func (w *Writer) reserve(need int64) error {
	need = w.store.blocks(need)
	if need <= w.reserved {
		return nil
	}
	step := need - w.reserved
	if w.announced >= 0 {
		left := headerSize(w.bucket, w.key) + w.announced - w.reserved
		step = max(step, w.store.blocks(min(left, reserveStep)))
	}
	if err := w.store.reserve(w.state, step, 1-w.objects); err != nil {
		return err
	}
	w.reserved += step
	w.objects = 1
	return nil
}

// SetLayout marks the object as a layout: its bytes say where the parts of the object with this key are. Call it before Commit.
func (w *Writer) SetLayout() { w.isLayout = true }

// Commit stores the object under its key, replacing an earlier one. If it fails, the earlier object remains. Commit ends the Writer.
func (w *Writer) Commit() error {
	if w.announced >= 0 && w.written != w.announced {
		w.Abort()
		return fmt.Errorf("%d bytes written, %d announced", w.written, w.announced)
	}
	if err := w.commit(); err != nil {
		w.store.failures.Add(1)
		w.Abort()
		return err
	}
	w.file = nil
	return nil
}

func (w *Writer) commit() error {
	return w.commitAs(header{length: w.written, checksum: w.sum.Sum64(), isLayout: w.isLayout})
}

func (w *Writer) commitAs(of header) error {
	if _, err := w.file.WriteAt(of.encode(w.bucket, w.key), 0); err != nil {
		return err
	}
	s, id := w.store, identify(w.bucket, w.key)
	if s.sync {
		if err := w.file.Sync(); err != nil {
			return err
		}
	}
	stripe := s.stripes.of(id)
	stripe.Lock()
	defer stripe.Unlock()
	s.log.changing(id)
	path := s.path(w.bucket, id)
	if err := s.rename(w.file.Name(), path); err != nil {
		return err
	}
	info, err := w.file.Stat() // after the rename, which updates the change time
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	if err := w.file.Close(); err != nil { // network file systems report exceeded quotas here
		return errors.Join(err, os.Remove(path))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.state.reserved -= w.reserved
	w.state.writing--
	s.index.add(entry{id: id, size: s.blocks(info.Size()), stamp: stampOf(info), verified: uint32(time.Now().Unix()), bucket: w.state.number})
	return nil
}

// Rename gives an object another key of the same length, in place of the one that has it. While it runs, neither may be there; when it
// fails, the object is gone. The error is ErrMiss if there is no such object.
func (s *Store) Rename(bucket, from, to string) error {
	if len(from) != len(to) {
		return fmt.Errorf("rename %s to %s: want keys of the same length, since the file's header has it", from, to)
	}
	w, of, err := s.take(bucket, from)
	if err != nil {
		return err
	}
	w.key = to
	if err := w.commitAs(of); err != nil {
		s.failures.Add(1)
		w.Abort()
		return err
	}
	return nil
}

// take makes the file of an object that of a Writer.
func (s *Store) take(bucket, key string) (*Writer, header, error) {
	id := identify(bucket, key)
	stripe := s.stripes.of(id)
	stripe.Lock()
	defer stripe.Unlock()
	s.mu.Lock()
	known := s.index.find(id) != nil
	s.mu.Unlock()
	if !known {
		return nil, header{}, ErrMiss
	}
	path := s.path(bucket, id)
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, header{}, ErrMiss // drop finds out why
	}
	text := make([]byte, headerSize(bucket, key))
	_, err = file.ReadAt(text, 0)
	of, ok := decodeHeader(text, bucket, key)
	if err != nil || !ok {
		return nil, header{}, errors.Join(ErrMiss, file.Close())
	}
	s.log.changing(id)
	s.mu.Lock()
	e, _ := s.index.remove(id) // it is present: this goroutine holds its stripe
	b := s.index.buckets[e.bucket]
	b.reserved += e.size
	b.writing++
	s.mu.Unlock()
	return &Writer{store: s, state: b, bucket: bucket, key: key, reserved: e.size, objects: 1, file: file}, of, nil
}

// Abort discards what was written. It does nothing after Commit or Abort.
func (w *Writer) Abort() {
	if w.file == nil {
		return
	}
	_ = w.file.Close()           // nothing to lose: the file is removed
	_ = os.Remove(w.file.Name()) // on failure, the next Scan removes it
	w.file = nil
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.state.reserved -= w.reserved
	w.state.writing -= w.objects
}
