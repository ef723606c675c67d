// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/zeebo/xxh3"
)

// reserveStep is how much room a Writer takes at a time. It takes what it is about to write, not what it was told it will
// write: who announces much and sends nothing makes nobody else's objects go.
const reserveStep = 8 << 20

// Writer takes one object in. It is for one goroutine, which ends it with Commit or Abort. Any error of its methods that is
// not ErrTooLarge is the disk's.
type Writer struct {
	store       *Store
	lane        *lane
	bucket, key string
	announced   int64 // -1: not told
	most        int64
	written     int64
	reserved    int64
	file        *os.File // nil when ended
	sum         *xxh3.Hasher
}

// Fits says, as Create does, whether an object of size bytes, -1 if that is not known, is too large for its bucket.
func (s *Store) Fits(bucket, key string, size int64) error {
	_, _, err := s.fits(bucket, key, size)
	return err
}

func (s *Store) fits(bucket, key string, size int64) (l *lane, most int64, err error) {
	l, most = s.most(bucket)
	most -= headerSize(bucket, key)
	if most < 0 || size > most {
		return nil, 0, fmt.Errorf("%d bytes into bucket %s, where %d fit: %w", size, bucket, max(most, 0), ErrTooLarge)
	}
	return l, most, nil
}

// Create begins an object of size bytes, -1 if that is not known. Objects are seen when they are committed. It removes what
// was not used for longest as room is needed.
func (s *Store) Create(bucket, key string, size int64) (*Writer, error) {
	l, most, err := s.fits(bucket, key, size)
	if err != nil {
		return nil, err
	}
	// The file comes first: on a disk that can't be written nothing is evicted in vain.
	file, err := os.CreateTemp(filepath.Join(s.dir, "tmp"), "put-")
	if err != nil {
		s.failures.Add(1)
		return nil, err
	}
	w := &Writer{store: s, lane: l, bucket: bucket, key: key, announced: size, most: most, file: file, sum: xxh3.New()}
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

// Write takes more of the object's bytes.
func (w *Writer) Write(p []byte) (int, error) {
	if w.written+int64(len(p)) > w.most {
		return 0, fmt.Errorf("over %d bytes into bucket %s: %w", w.most, w.bucket, ErrTooLarge)
	}
	need := headerSize(w.bucket, w.key) + w.written + int64(len(p))
	if err := w.reserve(need); err != nil {
		return 0, err
	}
	n, err := w.file.Write(p)
	w.written += int64(n)
	_, _ = w.sum.Write(p[:n]) // a hash takes everything
	if err != nil {
		w.store.failures.Add(1)
	}
	return n, err
}

// reserve sees to it that need bytes of the file have room.
func (w *Writer) reserve(need int64) error {
	if need <= w.reserved {
		return nil
	}
	step := need - w.reserved
	if w.announced >= 0 {
		left := headerSize(w.bucket, w.key) + w.announced - w.reserved
		step = max(step, min(left, reserveStep))
	}
	if err := w.store.reserve(w.lane, step); err != nil {
		return err
	}
	w.reserved += step
	return nil
}

// Commit makes the object the bucket's object of that key, in place of one that was. After an error there is what was there
// before. It ends the Writer.
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
	header := encodeHeader(w.bucket, w.key, w.written, w.sum.Sum64())
	if _, err := w.file.WriteAt(header, 0); err != nil {
		return err
	}
	s, id := w.store, identify(w.bucket, w.key)
	stripe := s.stripe(id)
	stripe.Lock()
	defer stripe.Unlock()
	path := s.path(w.bucket, id)
	err := os.Rename(w.file.Name(), path)
	if errors.Is(err, fs.ErrNotExist) { // the first object in its folder
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		err = os.Rename(w.file.Name(), path)
	}
	if err != nil {
		return err
	}
	info, err := w.file.Stat() // after the rename, which changes the change time
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	if err := w.file.Close(); err != nil { // where quotas of network file systems speak up
		return errors.Join(err, os.Remove(path))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.lane.reserved -= w.reserved
	s.index.add(entry{id: id, size: info.Size(), stamp: stampOf(info), verified: uint32(time.Now().Unix()), lane: w.lane.number})
	return nil
}

// Abort throws away what was written. It does nothing after Commit or Abort.
func (w *Writer) Abort() {
	if w.file == nil {
		return
	}
	_ = w.file.Close()           // its bytes are not wanted
	_ = os.Remove(w.file.Name()) // or is removed with the next start's tmp
	w.file = nil
	w.store.release(w.lane, w.reserved)
}
