// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// Writer writes the file of a split, chunk by chunk. It is not safe for concurrent use; its user calls Finish or Discard.
type Writer struct {
	file  *File
	about int64 // estimate of the file's size, for errors
}

// Create begins the file of a split, in place of an older one. about is the size that it may get.
func (d *Dir) Create(plan string, split int, about int64) (*Writer, error) {
	place := d.place(plan, nameOf(split))
	w := &Writer{file: &File{dir: d, name: filepath.Join(d.path, place), head: Head{Place: place}}, about: about}
	var err error
	if w.file.file, err = create(w.temporary(), direct); err == nil {
		err = w.append(pages(prefix)) // Finish fills it
	}
	if err != nil {
		w.Discard()
		return nil, w.failed(err)
	}
	return w, nil
}

// Add writes the next chunk, which must be of a Paged arena.
func (w *Writer) Add(c *rows.Chunk) error {
	f := w.file
	piece := PieceOf(c.Bytes() / int64(c.Rows()))
	f.head.Chunks = append(f.head.Chunks, Chunk{Stub: c.Stub(), Piece: piece, Sums: sums(c.Memory(), piece), offset: f.size})
	return w.failed(w.append(c.Memory()))
}

// Finish completes the file. sealed has the chunks that were added.
func (w *Writer) Finish(schema []byte, sealed rows.Sealed) (*File, error) {
	f := w.file
	f.head.Schema, f.head.Hash, f.head.Rows, f.head.Bytes = schema, sealed.Hash, sealed.Rows, sealed.Bytes
	var buf bytes.Buffer
	err := gob.NewEncoder(&buf).Encode(&f.head)
	if err == nil {
		head := pages(buf.Len())
		copy(head, buf.Bytes())
		err = w.append(head)
	}
	if err == nil {
		first, sum := pages(prefix), xxh3.Hash128(buf.Bytes()).Bytes()
		copy(first, magic)
		binary.LittleEndian.PutUint64(first[8:], uint64(buf.Len()))
		copy(first[16:], sum[:])
		_, err = f.file.WriteAt(first, 0)
	}
	if err == nil {
		err = os.Rename(w.temporary(), f.name)
	}
	if err != nil {
		return nil, w.failed(err)
	}
	return f, nil
}

// Discard removes what was written.
func (w *Writer) Discard() {
	if f := w.file; f.file != nil {
		_ = f.file.Close()
		_ = os.Remove(w.temporary())
		f.dir.used.Add(-f.size)
		f.file, f.size = nil, 0
	}
}

func (w *Writer) temporary() string { return w.file.name + temporary }

// append writes whole pages at the end.
func (w *Writer) append(memory []byte) error {
	f, n := w.file, int64(len(memory))
	if used := f.dir.used.Add(n); f.dir.limit > 0 && used > f.dir.limit {
		f.dir.used.Add(-n)
		return &FullError{Path: f.dir.path, Need: max(w.about, f.size+n), Used: used - n - f.size, Limit: f.dir.limit}
	}
	f.size += n
	_, err := f.file.WriteAt(memory, f.size-n)
	return err
}

// failed explains an error.
func (w *Writer) failed(err error) error {
	var full *FullError
	if err == nil || errors.As(err, &full) {
		return err
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		d := w.file.dir
		var disk unix.Statfs_t
		_ = unix.Statfs(d.path, &disk)                 // without it the message says that 0 bytes are free
		free := int64(disk.Bavail) * int64(disk.Bsize) //nolint:unconvert // 32 bits on macOS
		return &FullError{Path: d.path, Need: max(w.about, w.file.size), Used: d.Used() - w.file.size, Free: free}
	}
	return fmt.Errorf("spill: %w", err)
}

// Write writes the file of a split whose chunks are in memory of a Paged arena.
func (d *Dir) Write(plan string, split int, schema []byte, sealed rows.Sealed) (*File, error) {
	about := int64(offheap.PageSize)
	for _, c := range sealed.Chunks {
		about += int64(len(c.Memory()))
	}
	w, err := d.Create(plan, split, about)
	if err != nil {
		return nil, err
	}
	for _, c := range sealed.Chunks {
		if err := w.Add(c); err != nil {
			w.Discard()
			return nil, err
		}
	}
	f, err := w.Finish(schema, sealed)
	if err != nil {
		w.Discard()
	}
	return f, err
}
