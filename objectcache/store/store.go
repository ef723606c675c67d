// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package store stores objects as files in one folder, with limits per bucket and in total, and evicts the least recently used ones.
//
// Each object is one file, objects/<bucket>/<2 hex digits>/<30 hex digits>, named by a hash of bucket and key; see header.go for its
// format. It is written to tmp/ and renamed when it is complete, so a killed process leaves no partial objects. Without Config.Sync
// nothing is synced to the disk: after a power failure a file may have any content, which header and checksum detect at the object's next
// read. In memory there is an index of about 90 bytes per object (index.go), built by walking the folder (scan.go).
package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/singleflight"
)

var (
	// ErrMiss says that there is no such object.
	ErrMiss = errors.New("no such object")
	// ErrTooLarge says that an object exceeds its bucket's quota by itself.
	ErrTooLarge = errors.New("object larger than its bucket's quota")
	// ErrNoRoom says that an object has no room although all that can be evicted was.
	ErrNoRoom = errors.New("no room: other writes take what the limits allow, or other files leave too little of the disk free (--min-free)")
)

// DefaultMaxObjects is a limit whose index takes about 1 GB of memory.
const DefaultMaxObjects = 10_000_000

// DefaultVerifyEvery is how long a verified checksum is trusted.
const DefaultVerifyEvery = 10 * time.Minute

// maxVerifies bounds the memory for verifications: each takes a buffer.
const maxVerifies = 32

// Config configures a Store.
type Config struct {
	// Dir is the Store's own folder. It is created if it does not exist; its parent must exist.
	Dir    string
	Limits Limits
	// Block is the unit of disk space, in bytes, in which files are counted. Default: that of the file system.
	Block int64
	// MinFree is the fraction of the disk's bytes and inodes that the Store keeps free: it evicts objects for that, whoever uses the
	// disk. Default 0: only the limits apply.
	MinFree float64
	// VerifyEvery is how long a verified checksum is trusted, while the file's change time stays the same. Default
	// DefaultVerifyEvery; a negative value verifies at every read.
	VerifyEvery time.Duration
	// Sync writes each object and each removal to the disk before Commit and Delete return, so that they survive a power cut.
	Sync bool
}

// Limits are in bytes of disk blocks of files, which include headers.
type Limits struct {
	Total   int64            // of all buckets together
	Objects int64            // number of objects in all buckets together, which bounds the index's memory; default DefaultMaxObjects
	Quotas  map[string]int64 // by bucket; a bucket without a quota has no objects
}

// Store stores objects. Open makes one; it is safe for concurrent use; Close ends it.
type Store struct {
	folder

	verifyEvery time.Duration
	minFree     float64
	lock        *os.File // the folder, locked against other processes
	verifying   singleflight.Group
	verifies    chan struct{} // has a value for each verification in progress
	log         *changeLog

	// stripes keep a file and its index entry consistent: a goroutine that changes both holds the object's stripe, and locks mu
	// inside. No goroutine holds two stripes.
	stripes stripes

	mu    sync.Mutex // never held across I/O
	index index
}

// Open opens the store in a folder. Its index is empty until Scan has finished; until then existing objects are misses. It is no
// error if the disk can't be written, as long as the folder exists: its objects can still be read.
func Open(cfg Config) (*Store, error) {
	if cfg.VerifyEvery == 0 {
		cfg.VerifyEvery = DefaultVerifyEvery
	}
	if err := os.Mkdir(cfg.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		if _, statErr := os.Stat(cfg.Dir); statErr != nil {
			return nil, fmt.Errorf("the store's folder: %w", err)
		}
	}
	lock, err := os.Open(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("the store's folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: in use by another process, give each a folder of its own: %w", cfg.Dir, err), lock.Close())
	}
	if cfg.Block == 0 {
		cfg.Block = blockSize(cfg.Dir)
	}
	s := &Store{verifyEvery: cfg.VerifyEvery, minFree: cfg.MinFree, lock: lock, index: newIndex(), verifies: make(chan struct{}, maxVerifies)}
	s.dir, s.block, s.sync = cfg.Dir, cfg.Block, cfg.Sync
	s.index.setLimits(cfg.Limits)
	_, err = os.Lstat(filepath.Join(s.dir, "objects"))
	isNew := errors.Is(err, fs.ErrNotExist)
	for _, sub := range []string{"tmp", "objects"} {
		if err := os.MkdirAll(filepath.Join(s.dir, sub), 0o700); err != nil {
			s.failures.Add(1) // Create will report it
		}
	}
	if s.log, err = openChangeLog(&s.folder, isNew); err != nil {
		s.failures.Add(1)
		s.log.file = nil // Changed then knows of no changes
	}
	return s, nil
}

// Close unlocks the folder for other processes. Open objects stay readable.
func (s *Store) Close() error {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.log.file == nil {
		return s.lock.Close()
	}
	return errors.Join(s.log.file.Close(), s.lock.Close())
}

// Failures counts failed reads, writes and removals, and damaged objects.
func (s *Store) Failures() int64 { return s.failures.Load() }

// BucketStats describes one bucket.
type BucketStats struct {
	Bucket         string
	Objects, Bytes int64 // current numbers; Bytes counts disk blocks, including objects being written
	Quota          int64
	Evicted        int64 // objects removed to make room
	EvictedBytes   int64
	Damaged        int64 // objects removed because their file was damaged
}

// Stats lists the buckets in no particular order.
func (s *Store) Stats() []BucketStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := make([]BucketStats, 0, len(s.index.buckets))
	for _, l := range s.index.buckets {
		if l.quota == 0 && l.objects == 0 {
			continue // no longer in the limits
		}
		stats = append(stats, BucketStats{
			Bucket: l.name, Objects: l.objects, Bytes: l.used + l.reserved, Quota: l.quota,
			Evicted: l.evicted, EvictedBytes: l.evictedBytes, Damaged: l.damaged,
		})
	}
	return stats
}

// Delete removes an object if it exists. Readers that have opened it can still read it.
func (s *Store) Delete(bucket, key string) error {
	id := identify(bucket, key)
	stripe := s.stripes.of(id)
	stripe.Lock()
	defer stripe.Unlock()
	s.log.changing(id)
	return s.remove(bucket, id)
}

// remove removes the object's file, and then its entry. The caller holds the object's stripe.
func (s *Store) remove(bucket string, id identity) error {
	if err := s.unlink(bucket, id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.remove(id)
	return nil
}

// identity identifies an object: the first half of the SHA-256 of bucket, slash and key. The file has the full name, which is
// compared at each read: if two names had the same identity, reading one of them would be a miss and never return the other.
type identity [16]byte

func identify(bucket, key string) identity {
	sum := sha256.Sum256([]byte(bucket + "/" + key))
	return identity(sum[:16])
}

// stripes are locks for objects; several objects share one.
type stripes [256]sync.Mutex

func (all *stripes) of(id identity) *sync.Mutex { return &all[id[0]] }
