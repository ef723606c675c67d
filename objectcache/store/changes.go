// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// IDSize is the length of an object's ID in lists of changes.
const IDSize = len(identity{})

// The change log records which objects were stored or removed, and when, so that a node that was absent can remove objects that
// others changed in its place. It consists of two files of records: the current one and the previous one, which is replaced by the
// current one when that has logRecords. Both survive a restart; nothing is recorded while the process is down, when nothing changes
// either. The first record of a file has no object: it says when the file starts, and whether there was a log before.
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

// firstLog is the identity in the first record of a new folder's first log: there are no changes before it.
var firstLog = identity{0: 0xff, 15: 0xff}

type changeLog struct {
	mu      sync.Mutex // held while writing, but not while reading
	file    *os.File   // nil if the log can't be written: then no changes are known
	records int
	limit   int // number of records; logRecords, except in tests
	folder  *folder
}

// openChangeLog opens the log in a store's folder; if there is none, it creates one that starts at the current time. isNew says that the
// folder is new.
func openChangeLog(f *folder, isNew bool) (l *changeLog, err error) {
	l = &changeLog{limit: logRecords, folder: f}
	path := filepath.Join(f.dir, logName)
	l.file, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		first := identity{}
		if isNew {
			first = firstLog
		}
		return l, l.begin(first)
	}
	if err != nil {
		return l, err
	}
	info, err := l.file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, errForeign)
	}
	if err != nil {
		return l, errors.Join(err, l.file.Close())
	}
	l.records = int(info.Size() / recordSize)
	if info.Size()%recordSize != 0 { // the last record is incomplete
		return l, l.file.Truncate(int64(l.records) * recordSize)
	}
	return l, nil
}

// begin starts a new file, whose first record has the identity first.
func (l *changeLog) begin(first identity) (err error) {
	l.file, err = os.OpenFile(filepath.Join(l.folder.dir, logName), os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	l.records = 0
	if err != nil {
		return err
	}
	if err := l.write(first); err != nil || !l.folder.sync {
		return err
	}
	return syncFolder(l.folder.dir)
}

func (l *changeLog) write(id identity) error {
	record := binary.LittleEndian.AppendUint64(id[:], uint64(time.Now().UnixNano()))
	_, err := l.file.Write(record)
	l.records++
	if err == nil && l.folder.sync {
		err = l.file.Sync()
	}
	return err
}

// changing records that an object is about to be stored or removed. If that fails, the log is removed, since an incomplete log must
// not be used. The caller holds the object's stripe.
func (l *changeLog) changing(id identity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return
	}
	err := l.write(id)
	if err == nil && l.records >= l.limit {
		err = errors.Join(l.file.Close(), os.Rename(filepath.Join(l.folder.dir, logName), filepath.Join(l.folder.dir, oldLogName)))
		if err == nil {
			err = l.begin(identity{})
		}
	}
	if err != nil {
		l.folder.failures.Add(1)
		_ = l.file.Close() // removed next
		l.file = nil
		_ = os.Remove(filepath.Join(l.folder.dir, logName)) // otherwise the next start would use a log with a gap: see Changed
		_ = os.Remove(filepath.Join(l.folder.dir, oldLogName))
	}
}

// ErrForgotten says that the change log does not reach back far enough.
var ErrForgotten = errors.New("changes that long ago are not known any more")

// Changes are the IDs of objects that changed. The caller closes them.
type Changes struct {
	since time.Time
	files []*os.File
}

// Changed returns the objects that were stored or removed here since a time, possibly with some others.
func (s *Store) Changed(since time.Time) (*Changes, error) {
	s.log.mu.Lock()
	whole := s.log.file != nil
	s.log.mu.Unlock()
	if !whole {
		return nil, ErrForgotten
	}
	c := &Changes{since: since}
	complete := false
	// The newer file first: records that move to the older one meanwhile are read twice instead of being missed.
	for _, name := range []string{logName, oldLogName} {
		file, err := openFile(filepath.Join(s.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
			return nil, errors.Join(ErrForgotten, err, file.Close(), c.Close())
		}
		c.files = append(c.files, file)
		var first [recordSize]byte
		if _, err := file.ReadAt(first[:], 0); err != nil {
			continue // not even its start reached the disk
		}
		id, at := decodeRecord(first[:])
		complete = complete || at.Before(since) && at.UnixNano() != 0 || id == firstLog
	}
	if !complete {
		return nil, errors.Join(ErrForgotten, c.Close())
	}
	return c, nil
}

func decodeRecord(record []byte) (identity, time.Time) {
	return identity(record), time.Unix(0, int64(binary.LittleEndian.Uint64(record[IDSize:])))
}

// WriteTo writes the concatenated IDs.
func (c *Changes) WriteTo(w io.Writer) (n int64, err error) {
	out := bufio.NewWriter(w)
	for _, file := range c.files {
		in := bufio.NewReader(file)
		var record [recordSize]byte
		for {
			if _, err := io.ReadFull(in, record[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				break
			} else if err != nil {
				return n, err
			}
			id, at := decodeRecord(record[:])
			if at.Before(c.since) {
				continue
			}
			written, err := out.Write(id[:])
			n += int64(written)
			if err != nil {
				return n, err
			}
		}
	}
	return n, out.Flush()
}

// Close closes the log's files.
func (c *Changes) Close() error {
	var all error
	for _, file := range c.files {
		all = errors.Join(all, file.Close())
	}
	return all
}

// Discard reads IDs, as Changes writes them, and removes those of the objects that were stored before a time.
func (s *Store) Discard(ids io.Reader, before time.Time) error {
	in := bufio.NewReader(ids)
	for {
		var id identity
		if _, err := io.ReadFull(in, id[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read IDs of objects: %w", err)
		}
		if err := s.discard(id, before); err != nil {
			return err
		}
	}
}

// Clear removes the objects that were stored before a time.
func (s *Store) Clear(before time.Time) error {
	s.mu.Lock()
	ids := make([]identity, 0, len(s.index.refs))
	for id := range s.index.refs {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		if err := s.discard(id, before); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) discard(id identity, before time.Time) error {
	stripe := s.stripes.of(id)
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
	if info, err := os.Lstat(s.path(bucket, id)); err == nil && !info.ModTime().Before(before) {
		return nil
	}
	return s.remove(bucket, id)
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
	info, err := os.Lstat(filepath.Join(s.dir, aliveName))
	if err != nil || !info.Mode().IsRegular() {
		return time.Time{}, false
	}
	return info.ModTime(), true
}

// Touch records that the store is in use. A failure is counted.
func (s *Store) Touch() {
	path, now := filepath.Join(s.dir, aliveName), time.Now()
	err := os.Chtimes(path, now, now)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.Join(os.WriteFile(path, nil, 0o600), syncFolder(s.dir)) // without it, the next start keeps nothing
	}
	s.count(err)
}
