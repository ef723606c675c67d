// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spill keeps the chunks of splits in files: it knows files and bytes, and nothing of the rows in them.
//
// A file DIR/PLAN/NODE/SPLIT.rows has the chunks of one split. It begins with a prefix (magic, length and XXH3-128 of the head). Then follow, each at a
// multiple of 4 KiB, the chunks' memory and the head as gob, so that chunks can be written while later ones are not known. It is written under a
// temporary name and renamed; there is no fsync, since the checksums of the chunks' pieces find what a power cut tears. A node reads files of 0600 that it wrote itself.
// The head has the checksums of all pieces, in their order, and the place of the file: so a chunk is accepted at its place in its file alone, and a file
// in the folder of its node and plan, as the split that it was written for.
package spill

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/internal/words"
)

const (
	magic  = "DCROWS\x00\x03" // the last byte is the version
	prefix = 8 + 8 + 16       // magic, length of the head, its XXH3-128
	// mostHead bounds the head that Open reads.
	mostHead = 1 << 30
)

// Head describes a file.
type Head struct {
	Place  string // PLAN/NODE/SPLIT.rows; "" in files of older releases, which can't be told from files of another place
	Schema []byte // of the rows, as an Arrow IPC message
	Hash   [16]byte
	Rows   int64
	Bytes  int64
	Chunks []Chunk
}

// Chunk is a chunk of a file.
type Chunk struct {
	rows.Stub
	Piece  int64  // length of the pieces of its memory that have checksums; the last one may be shorter
	Sums   []byte // XXH3-64 of each piece, little-endian
	offset int64  // in the file: it follows from the lengths
}

// Dir is the folder of the files of one data node, which no other process uses. It is safe for concurrent use; make it with New.
type Dir struct {
	path  string
	node  int
	limit int64
	used  *atomic.Int64
	// unplaced says that files of older releases, which don't have their place, are opened too.
	unplaced bool
}

// New returns the folder of a node below a path, which may be missing. The files take at most limit bytes; 0 means as many as the disk has.
func New(path string, node int, limit int64) *Dir {
	return &Dir{path: path, node: node, limit: limit, used: &atomic.Int64{}}
}

// Below returns a folder within this one for files that also identify themselves by their schema: files of older releases, which don't have their
// place, are opened there. Limit and Used are of both folders together.
func (d *Dir) Below(name string) *Dir {
	return &Dir{path: filepath.Join(d.path, name), node: d.node, limit: d.limit, used: d.used, unplaced: true}
}

// Path is the folder that New was given.
func (d *Dir) Path() string { return d.path }

// Used is the number of bytes that the files take.
func (d *Dir) Used() int64 { return d.used.Load() }

// Limit is the maximum of Used; 0: none.
func (d *Dir) Limit() int64 { return d.limit }

// FullError says that a file does not fit, neither within the limit nor on the disk.
type FullError struct {
	Path       string
	Need, Used int64 // bytes of the file, and of all others
	Limit      int64 // 0: the disk is full
	Free       int64 // on the disk
}

// Error includes the numbers in bytes and in binary units.
func (e *FullError) Error() string {
	if e.Limit > 0 {
		return fmt.Sprintf("spill folder %s: needed %s beside %s in use, and --spill-limit is %s: raise it (in a cluster, spec.arrow.spill.limit or "+
			"SPILL_LIMIT), add data nodes, or cache fewer columns or rows",
			e.Path, words.ExactBytes(e.Need), words.ExactBytes(e.Used), words.ExactBytes(e.Limit))
	}
	return fmt.Sprintf("spill folder %s: the disk is full: needed %s beside %s in use, and %s are free: use a larger volume, add data nodes, or cache fewer columns or rows",
		e.Path, words.ExactBytes(e.Need), words.ExactBytes(e.Used), words.ExactBytes(e.Free))
}

// place is the name of a file within the folder.
func (d *Dir) place(plan, file string) string { return filepath.Join(plan, strconv.Itoa(d.node), file) }

// suffix ends the names of files of rows; before it is the number of the split.
const suffix = ".rows"

// temporary follows the names of files that are not complete.
const temporary = ".tmp"

func nameOf(split int) string { return strconv.Itoa(split) + suffix }

// numberOf is the inverse of nameOf; ok is false for other names.
func numberOf(name string) (split int, ok bool) {
	n, err := strconv.ParseUint(strings.TrimSuffix(name, suffix), 10, 31)
	return int(n), err == nil && name == nameOf(int(n))
}

// Keep removes all files of this node except those of a plan.
func (d *Dir) Keep(plan string) error {
	plans, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, p := range plans {
		if p.Name() == plan || !p.IsDir() {
			continue
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(d.path, p.Name(), strconv.Itoa(d.node))))
		_ = os.Remove(filepath.Join(d.path, p.Name())) // fails while other nodes have files there
	}
	return err
}

// List returns the splits of which there are files of this node, by plan, in rising order. If some plans can't be read, it returns the others
// and an error.
func (d *Dir) List() (map[string][]int, error) {
	found := map[string][]int{}
	plans, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	for _, p := range plans {
		if !p.IsDir() {
			continue
		}
		files, e := os.ReadDir(filepath.Join(d.path, d.place(p.Name(), "")))
		if errors.Is(e, fs.ErrNotExist) {
			continue
		}
		err = errors.Join(err, e)
		splits := []int{}
		for _, f := range files {
			if n, ok := numberOf(f.Name()); ok {
				splits = append(splits, n)
			}
		}
		slices.Sort(splits)
		found[p.Name()] = splits
	}
	return found, err
}

// File is the file of a split. It is safe for concurrent use; its user closes it.
type File struct {
	dir  *Dir
	name string
	head Head
	size int64

	mu   sync.RWMutex
	file *os.File
}

// Head describes the file.
func (f *File) Head() *Head { return &f.head }

// Attach makes the chunks of the file, which backing reads: the file itself, or what reads it. They are read when they are needed.
func (f *File) Attach(l *rows.Layout, a *offheap.Arena, backing rows.Backing) (rows.Sealed, error) {
	sealed := rows.Sealed{Rows: f.head.Rows, Bytes: f.head.Bytes, Hash: f.head.Hash}
	for i, c := range f.head.Chunks {
		chunk, err := l.Attach(a, c.Stub, backing, i)
		if err != nil {
			return rows.Sealed{}, fmt.Errorf("spill file %s: %w", f.name, err)
		}
		sealed.Chunks = append(sealed.Chunks, chunk)
	}
	return sealed, nil
}

// Load makes the chunks of the file and reads all of them to memory of the arena, which must be Paged.
func (f *File) Load(l *rows.Layout, a *offheap.Arena) (rows.Sealed, error) {
	sealed := rows.Sealed{Rows: f.head.Rows, Bytes: f.head.Bytes, Hash: f.head.Hash}
	for i, c := range f.head.Chunks {
		chunk, err := l.Load(a, c.Stub, f, i)
		if err != nil {
			for _, made := range sealed.Chunks {
				a.Discard(made.Memory())
			}
			return rows.Sealed{}, fmt.Errorf("spill file %s: %w", f.name, err)
		}
		sealed.Chunks = append(sealed.Chunks, chunk)
	}
	return sealed, nil
}

// pages returns zeroed memory of whole pages with room for n bytes.
func pages(n int) []byte {
	whole := (n + offheap.PageSize - 1) &^ (offheap.PageSize - 1)
	b := make([]byte, whole+offheap.PageSize)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (offheap.PageSize - 1))
	return b[skip : skip+whole]
}

// open opens a regular file, if uncached is direct without the page cache where the file system can. It does not follow a symbolic link or wait
// for the other end of a named pipe.
func open(name string, flags, uncached int) (*os.File, error) {
	flags |= unix.O_NOFOLLOW | unix.O_NONBLOCK
	file, err := os.OpenFile(name, flags|uncached, 0o600)
	if errors.Is(err, unix.EINVAL) {
		file, err = os.OpenFile(name, flags, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file: remove it", name), err, file.Close())
	}
	return file, nil
}

// create creates a file, in place of one that a process has left under the name.
func create(name string, uncached int) (*os.File, error) {
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	if err == nil {
		if err = os.Remove(name); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	return open(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, uncached)
}

// Open opens the file of a split that an earlier process wrote. It reads the head only.
func (d *Dir) Open(plan string, split int) (*File, error) {
	place := d.place(plan, nameOf(split))
	f := &File{dir: d, name: filepath.Join(d.path, place)}
	file, err := open(f.name, os.O_RDWR, direct)
	if err != nil {
		return nil, err
	}
	if err = f.readHead(file); err == nil {
		err = d.checkPlace(f.head.Place, place)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("spill file %s: %w", f.name, err)
	}
	f.file = file
	d.used.Add(f.size)
	return f, nil
}

// checkPlace returns an error unless the place that a head has is that of its file.
func (d *Dir) checkPlace(has, want string) error {
	switch {
	case has == want || has == "" && d.unplaced:
		return nil
	case has == "":
		return errors.New("written by an older release, which did not store its place")
	}
	return fmt.Errorf("written as %s", has)
}

func (f *File) readHead(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	first := pages(prefix)
	if _, err := file.ReadAt(first, 0); err != nil {
		return err
	}
	length := binary.LittleEndian.Uint64(first[8:])
	if string(first[:8]) != magic || length > mostHead {
		return errors.New("not a file of this version")
	}
	if length > uint64(info.Size()) {
		return fmt.Errorf("its head has %d bytes, the file %d", length, info.Size())
	}
	head := pages(int(length))
	if _, err := file.ReadAt(head, info.Size()-int64(len(head))); err != nil {
		return err
	}
	head = head[:length]
	if xxh3.Hash128(head).Bytes() != [16]byte(first[16:prefix]) {
		return errors.New("the head has another checksum")
	}
	if err := gob.NewDecoder(bytes.NewReader(head)).Decode(&f.head); err != nil {
		return err
	}
	f.size = offheap.PageSize
	for i := range f.head.Chunks {
		f.head.Chunks[i].offset = f.size
		f.size += f.head.Chunks[i].Memory
	}
	if f.size += int64(len(pages(len(head)))); info.Size() != f.size {
		err = fmt.Errorf("has %d bytes, want %d", info.Size(), f.size)
	}
	return err
}

// ErrCorrupt says that a chunk was read, but has another checksum than when it was written.
var ErrCorrupt = errors.New("the chunk has another checksum")

// ReadChunk implements rows.Backing: it reads a chunk to memory of its length, and verifies it.
func (f *File) ReadChunk(i int, memory []byte) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.readRange(i, memory, rows.Range{To: int64(len(memory))})
}

// Repair writes a chunk again, in place.
func (f *File) Repair(i int, memory []byte) error {
	c := &f.head.Chunks[i]
	if !bytes.Equal(sums(memory, c.Piece), c.Sums) {
		return fmt.Errorf("spill file %s: chunk %d has other rows now", f.name, i)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.file.WriteAt(memory, c.offset)
	return err
}

// Close closes the file, and removes it unless keep is set.
func (f *File) Close(keep bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dir.used.Add(-f.size)
	err := f.file.Close()
	if !keep {
		err = errors.Join(err, os.Remove(f.name))
		_ = os.Remove(filepath.Dir(f.name)) // fails while it has other files
		_ = os.Remove(filepath.Dir(filepath.Dir(f.name)))
	}
	return err
}
