// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// IDSize is the length of an object's ID in lists of changes.
const IDSize = len(identity{})

// The change log records which objects were stored or removed, and when, so that a node that was absent can remove objects that
// others changed in its place. It consists of two files of records: the current one and the previous one, which is replaced by the
// current one when that has logRecords. Both survive a restart; nothing is recorded while the process is down, when nothing changes
// either.
//
//	offset  size  what
//	0       16    identity
//	16      8     Unix time in ns, little-endian
const (
	recordSize = 24
	logRecords = 1 << 18
	logName    = "changes"
	oldLogName = "changes.old"
)

type changeLog struct {
	mu      sync.Mutex // held while writing, but not while reading
	file    *os.File   // nil if the log can't be written: then no changes are known
	records int
	limit   int // number of records; logRecords, except in tests
}

// openChangeLog opens the log in a store's folder; if there is none, it creates one that starts at the current time.
func openChangeLog(dir string) (l *changeLog, err error) {
	l = &changeLog{limit: logRecords}
	path := filepath.Join(dir, logName)
	l.file, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return l, l.begin(dir)
	}
	if err != nil {
		return l, err
	}
	info, err := l.file.Stat()
	if err != nil {
		return l, err
	}
	l.records = int(info.Size() / recordSize)
	if info.Size()%recordSize != 0 { // the last record is incomplete
		return l, l.file.Truncate(int64(l.records) * recordSize)
	}
	return l, nil
}

// begin starts a new file. Its first record has no object: it records the time at which the file starts.
func (l *changeLog) begin(dir string) (err error) {
	l.file, err = os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	l.records = 0
	if err != nil {
		return err
	}
	return l.write(identity{})
}

func (l *changeLog) write(id identity) error {
	record := binary.LittleEndian.AppendUint64(id[:], uint64(time.Now().UnixNano()))
	_, err := l.file.Write(record)
	l.records++
	return err
}

// changing records that an object is about to be stored or removed. If that fails, the log is removed, since an incomplete log must
// not be used. The caller holds the object's stripe.
func (s *Store) changing(id identity) {
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return
	}
	err := l.write(id)
	if err == nil && l.records >= l.limit {
		err = errors.Join(l.file.Close(), os.Rename(filepath.Join(s.dir, logName), filepath.Join(s.dir, oldLogName)))
		if err == nil {
			err = l.begin(s.dir)
		}
	}
	if err != nil {
		s.failures.Add(1)
		_ = l.file.Close() // removed next
		l.file = nil
		_ = os.Remove(filepath.Join(s.dir, logName)) // otherwise the next start would use a log with a gap: see Changed
		_ = os.Remove(filepath.Join(s.dir, oldLogName))
	}
}

// ErrForgotten says that the change log does not reach back far enough.
var ErrForgotten = errors.New("changes that long ago are not known any more")

// Changed returns the concatenated IDs of the objects that were stored or removed here since a time, possibly with some others.
func (s *Store) Changed(since time.Time) ([]byte, error) {
	s.log.mu.Lock()
	whole := s.log.file != nil
	s.log.mu.Unlock()
	if !whole {
		return nil, ErrForgotten
	}
	var ids []byte
	complete := false
	// The newer file first: records that move to the older one meanwhile are read twice instead of being missed.
	for _, name := range []string{logName, oldLogName} {
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := 0; i+recordSize <= len(text); i += recordSize {
			at := time.Unix(0, int64(binary.LittleEndian.Uint64(text[i+IDSize:])))
			if i == 0 && at.Before(since) {
				complete = true
			}
			if !at.Before(since) {
				ids = append(ids, text[i:i+IDSize]...)
			}
		}
	}
	if !complete {
		return nil, ErrForgotten
	}
	return ids, nil
}

// Discard removes the objects with the IDs, in the format of Changed, from this store.
func (s *Store) Discard(ids []byte) error {
	if len(ids)%IDSize != 0 {
		return fmt.Errorf("%d bytes of IDs, want a multiple of %d", len(ids), IDSize)
	}
	for ; len(ids) > 0; ids = ids[IDSize:] {
		if err := s.discard(identity(ids[:IDSize])); err != nil {
			return err
		}
	}
	return nil
}

// Clear removes all objects.
func (s *Store) Clear() error {
	for {
		s.mu.Lock()
		var from *bucketState
		for _, b := range s.index.buckets {
			if b.oldest != none {
				from = b
			}
		}
		id, ok := s.oldestLocked(from)
		s.mu.Unlock()
		if !ok {
			return nil
		}
		if err := s.discard(id); err != nil {
			return err
		}
	}
}

func (s *Store) discard(id identity) error {
	stripe := s.stripe(id)
	stripe.Lock()
	defer stripe.Unlock()
	s.mu.Lock()
	e := s.index.find(id)
	if e == nil {
		s.mu.Unlock()
		return nil
	}
	bucket := s.index.buckets[e.bucket].name
	s.mu.Unlock()
	if err := s.unlink(bucket, id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.remove(id)
	return nil
}

// Empty reports whether there are no objects.
func (s *Store) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.sums().objects == 0
}

// aliveName is a file whose modification time is when the store was last in use.
const aliveName = "alive"

// LastAlive is the time of the last Touch of this folder's store; ok is false if it is not known.
func (s *Store) LastAlive() (time.Time, bool) {
	info, err := os.Stat(filepath.Join(s.dir, aliveName))
	if err != nil {
		return time.Time{}, false
	}
	return info.ModTime(), true
}

// Touch records that the store is in use. A failure is counted.
func (s *Store) Touch() {
	s.count(os.WriteFile(filepath.Join(s.dir, aliveName), nil, 0o600)) // truncation sets the time
	now := time.Now()
	s.count(os.Chtimes(filepath.Join(s.dir, aliveName), now, now))
}
