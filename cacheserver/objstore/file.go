// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Bounds of the read-ahead of File.Read.
const (
	firstAhead = 256 << 10
	maxAhead   = 8 << 20
)

var (
	_ fs.File           = (*File)(nil)
	_ io.ReadSeekCloser = (*File)(nil)
	_ io.ReaderAt       = (*File)(nil)
)

// File is an open object or local file. ReadAt, Near, Prefetch, Drop and Buffered are safe for concurrent use; Read and Seek share an
// offset and must be called by one goroutine. The zero value is not usable; Store.Open makes Files, and the caller that opened one
// closes it after its last read.
type File struct {
	ctx      context.Context // passed to Open: io.ReaderAt takes no context
	uri      string
	size     int64
	modified time.Time

	local  *os.File // set for a local file
	stats  *counters
	object *object // set for a remote object

	pos      int64 // offset of Read and Seek
	ahead    segment
	nextRead int64 // length of the next read-ahead

	mu   sync.Mutex
	near []segment // bytes in memory, sorted by offset; near[0..] may overlap
}

// URI is the URI that the File was opened with.
func (f *File) URI() string { return f.uri }

// Size is the object's length in bytes.
func (f *File) Size() int64 { return f.size }

// Version identifies the content that the File was opened with: the store's entity tag, or the modification time of local files and
// of stores without tags. Different contents under one name have different versions; it is empty if the store reports neither.
func (f *File) Version() string {
	if f.object != nil {
		return versionOf(f.object.tag, f.modified)
	}
	return versionOf("", f.modified)
}

// Unchanged returns ErrChanged if a local file was written to after it was opened. For remote objects every read checks this.
func (f *File) Unchanged() error {
	if f.local == nil {
		return nil
	}
	now, err := f.local.Stat()
	if err == nil && (now.Size() != f.size || !now.ModTime().Equal(f.modified)) {
		err = fmt.Errorf("%w: it was written to at %s", ErrChanged, now.ModTime().UTC().Format(time.RFC3339Nano))
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", f.uri, err)
	}
	return nil
}

// Buffered is the number of bytes in memory from Prefetch and from the tail that Open read. It excludes the read-ahead of Read, which
// is at most 8 MiB.
func (f *File) Buffered() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	var n int64
	for _, s := range f.near {
		n += int64(len(s.data))
	}
	return n
}

// Drop discards the bytes in memory; later reads make requests again.
func (f *File) Drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.near = nil
}

// Close releases the File and its memory. It does not wait for reads in progress.
func (f *File) Close() error {
	f.Drop()
	f.ahead = segment{}
	if f.local == nil {
		return nil
	}
	if err := f.local.Close(); err != nil {
		return fmt.Errorf("close %s: %w", f.uri, err)
	}
	return nil
}

// Stat returns the File's base name, its size and, if known, its modification time.
func (f *File) Stat() (fs.FileInfo, error) { return info{f}, nil }

// Prefetch reads ranges into memory, where ReadAt finds them until Drop. Ranges at most Config.GapBytes apart are read by one
// request, and those longer than Config.PartBytes by several concurrent ones. It returns when all bytes have arrived; after an error
// it keeps none. The caller bounds the memory, which is at most the distance from the first to the last byte of ranges. For local
// files it does nothing and relies on the page cache.
func (f *File) Prefetch(ctx context.Context, ranges []Range) error {
	if err := checkRanges(f.uri, ranges, f.size); err != nil {
		return err
	}
	if f.object == nil {
		return nil
	}
	if f.ctx.Err() != nil {
		return canceled(f.ctx, f.uri)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.ctx, func() { cancel(context.Cause(f.ctx)) })()
	f.mu.Lock()
	runs := missing(ranges, f.near, f.object.store.cfg.GapBytes)
	f.mu.Unlock()

	segments := make([]segment, len(runs))
	group, ctx := errgroup.WithContext(ctx)
	for i, run := range runs {
		segments[i] = segment{off: run.Offset, data: make([]byte, run.Length)}
		f.fetchParts(ctx, group, segments[i])
	}
	if err := group.Wait(); err != nil {
		return err
	}
	f.keep(segments)
	return nil
}

// fetchParts starts the requests that fill to, one per part.
func (f *File) fetchParts(ctx context.Context, group *errgroup.Group, to segment) {
	run := Range{Offset: to.off, Length: int64(len(to.data))}
	for _, part := range split(run, f.object.store.cfg.PartBytes) {
		buf := to.data[part.Offset-to.off:][:part.Length]
		group.Go(func() error { return f.object.read(ctx, buf, part.Offset) })
	}
}

// ReadAll returns the whole object, in few requests. The caller bounds the memory by checking Size.
func (f *File) ReadAll(ctx context.Context) ([]byte, error) {
	if f.size == 0 {
		return []byte{}, nil
	}
	if data := f.whole(); data != nil {
		return data, nil
	}
	data := make([]byte, f.size)
	if f.object != nil {
		return data, f.readParts(ctx, data)
	}
	_, err := f.ReadAt(data, 0)
	return data, err
}

// readParts fills data with the whole object, from the bytes in memory and by concurrent requests for the rest.
func (f *File) readParts(ctx context.Context, data []byte) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range missing([]Range{{Length: f.size}}, f.near, 0) {
		f.fetchParts(ctx, group, segment{off: run.Offset, data: data[run.Offset:run.end()]})
	}
	for _, s := range f.near {
		copy(data[s.off:], s.data)
	}
	return group.Wait()
}

// keep adds segments to the ones in memory.
func (f *File) keep(segments []segment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	near := append(slices.Clone(f.near), segments...)
	slices.SortFunc(near, func(a, b segment) int { return cmp.Compare(a.off, b.off) })
	f.near = near
}

// whole returns the object's bytes if a single segment contains all of them.
func (f *File) whole() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.near {
		if s.covers(Range{Length: f.size}) {
			return s.data
		}
	}
	return nil
}

// ReadAt fills p from offset off, from memory if the bytes are there, otherwise by requests. At the object's end it returns the
// remaining bytes and io.EOF.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read %s: offset %d is negative", f.uri, off)
	}
	if off >= f.size {
		return 0, endIf(len(p) > 0)
	}
	want := p[:min(int64(len(p)), f.size-off)]
	n, err := f.readAt(want, off)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// readAt fills p; its range is within the object.
func (f *File) readAt(p []byte, off int64) (int, error) {
	if f.object == nil {
		return f.pread(p, off)
	}
	f.mu.Lock()
	near := f.near // the slice is replaced, never modified, so it may be read without the lock
	f.mu.Unlock()
	done := 0
	for done < len(p) {
		at := off + int64(done)
		have, next := find(near, at)
		if len(have) > 0 {
			done += copy(p[done:], have)
			continue
		}
		gap := p[done:min(int64(len(p)), next-off)]
		if err := f.object.read(f.ctx, gap, at); err != nil {
			return done, err
		}
		done += len(gap)
	}
	return done, nil
}

// Near returns the bytes in memory from offset on, at most length, that are contiguous there. They are read-only and stay valid after
// Drop.
func (f *File) Near(offset, length int64) []byte {
	f.mu.Lock()
	near := f.near
	f.mu.Unlock()
	have, _ := find(near, offset)
	n := min(int64(len(have)), length)
	return have[:n:n]
}

// find returns the bytes in memory from offset at on; if there are none, next is the offset of the next segment.
func find(near []segment, at int64) (have []byte, next int64) {
	next = 1<<63 - 1
	for _, s := range near {
		if s.off > at {
			return nil, min(next, s.off)
		}
		if at < s.end() {
			return s.data[at-s.off:], 0
		}
	}
	return nil, next
}

// Read reads from the File's offset. It reads ahead, doubling the length while reads are sequential, so that small reads don't each
// cost a request.
func (f *File) Read(p []byte) (int, error) {
	if f.pos >= f.size {
		return 0, endIf(len(p) > 0)
	}
	p = p[:min(int64(len(p)), f.size-f.pos)]
	n, err := f.readOn(p)
	f.pos += int64(n)
	return n, err
}

func (f *File) readOn(p []byte) (int, error) {
	if f.object == nil || len(p) == 0 {
		return f.readAt(p, f.pos)
	}
	f.mu.Lock()
	near := f.near
	f.mu.Unlock()
	have, next := find(near, f.pos)
	if len(have) > 0 {
		return copy(p, have), nil
	}
	if have, _ := find([]segment{f.ahead}, f.pos); len(have) > 0 {
		return copy(p, have), nil
	}
	if f.pos != f.ahead.end() || f.nextRead == 0 {
		f.nextRead = firstAhead
	}
	length := min(max(f.nextRead, int64(len(p))), min(next, f.size)-f.pos)
	data := make([]byte, length)
	if err := f.object.read(f.ctx, data, f.pos); err != nil {
		return 0, err
	}
	f.ahead = segment{off: f.pos, data: data}
	f.nextRead = min(f.nextRead*2, maxAhead)
	return copy(p, data), nil
}

// Seek implements io.Seeker for Read.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.pos
	case io.SeekEnd:
		offset += f.size
	default:
		return f.pos, fmt.Errorf("seek %s: whence %d: use io.SeekStart, io.SeekCurrent or io.SeekEnd", f.uri, whence)
	}
	if offset < 0 {
		return f.pos, fmt.Errorf("seek %s: offset %d is negative", f.uri, offset)
	}
	f.pos = offset
	return offset, nil
}

// endIf returns io.EOF if bytes were requested, else nil.
func endIf(asked bool) error {
	if asked {
		return io.EOF
	}
	return nil
}

// info is a File's fs.FileInfo.
type info struct{ f *File }

func (i info) Name() string       { return path.Base(i.f.uri) }
func (i info) Size() int64        { return i.f.size }
func (i info) Mode() fs.FileMode  { return 0o444 }
func (i info) ModTime() time.Time { return i.f.modified }
func (i info) IsDir() bool        { return false }
func (i info) Sys() any           { return nil }
