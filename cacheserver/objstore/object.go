// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore/blockcache"
)

// object is a remote object, as the first response described it. After tail it is immutable and safe for concurrent use.
type object struct {
	store    *Store
	bucket   bucket
	uri, key string

	size     int64
	tag      string // entity tag; empty if the store sends none
	modified time.Time
}

// span is the range of a request: length bytes from first on or, if last is set, the object's last length bytes or, if all is set,
// everything.
type span struct {
	first, length int64
	last, all     bool
}

// header formats the span as the value of a Range header, empty for everything.
func (s span) header() string {
	switch {
	case s.all:
		return ""
	case s.last:
		return fmt.Sprintf("bytes=-%d", s.length)
	}
	return fmt.Sprintf("bytes=%d-%d", s.first, s.first+s.length-1)
}

// answer is a store's response: length bytes of body from offset first on, of an object of size bytes. The requester closes its body.
type answer struct {
	body                io.ReadCloser
	first, length, size int64
	tag                 string
	modified            time.Time
}

// newAnswer parses the Content-Range and Content-Length of a response; length is the latter.
func newAnswer(body io.ReadCloser, contentRange string, length int64, tag string) answer {
	a := answer{body: body, length: length, size: length, tag: tag}
	if contentRange == "" {
		return a
	}
	var last int64
	a.first, last, a.size = -1, -1, -1
	if value, ok := strings.CutPrefix(contentRange, "bytes "); ok {
		span, size, _ := strings.Cut(value, "/")
		lo, hi, _ := strings.Cut(span, "-")
		a.first, last, a.size = number(lo), number(hi), number(size)
	}
	if length < 0 {
		a.length = last - a.first + 1
	}
	if last-a.first+1 != a.length { // contradictory headers: makes every check fail
		a.first = -1
	}
	return a
}

// number parses a decimal number; it returns -1 for anything else.
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// tail reads the object's last n bytes, or all of a shorter object, and records its size and tag.
func (o *object) tail(ctx context.Context, n int64) (segment, error) {
	var seg segment
	known, done := false, 0
	err := o.store.retry(ctx, o.uri, func(ctx context.Context) error {
		if known { // the response broke off: continue it
			m, err := o.try(ctx, seg.data[done:], seg.off+int64(done))
			done += m
			return err
		}
		return o.store.Attempt(ctx, func(ctx context.Context, alive func(n int)) error {
			a, err := o.bucket.get(ctx, o.key, span{length: n, last: true}, "")
			if errors.Is(err, errBeyondEnd) {
				// An empty object has no last bytes, and some stores reject a suffix range longer than the object: read the whole,
				// small object.
				a, err = o.bucket.get(ctx, o.key, span{all: true}, "")
			}
			if err != nil {
				return err
			}
			defer a.body.Close() // the body was read to its end or is abandoned
			if err := checkTail(a, n); err != nil {
				return err
			}
			o.size, o.tag, o.modified = a.size, a.tag, a.modified
			seg = segment{off: a.first, data: make([]byte, a.length)}
			known = true
			done, err = o.fill(a.body, seg.data, alive)
			return err
		})
	})
	return seg, err
}

// open determines the object's size and tag and reads its last n bytes.
func (o *object) open(ctx context.Context, n int64) (segment, error) {
	if o.store.blocks == nil {
		return o.tail(ctx, n)
	}
	if last, err := o.tail(ctx, 1); err != nil {
		return last, err
	}
	n = min(n, o.size)
	tail := segment{off: o.size - n, data: make([]byte, n)}
	return tail, o.read(ctx, tail.data, tail.off)
}

// read fills buf from offset off, through the object cache if there is one.
func (o *object) read(ctx context.Context, buf []byte, off int64) error {
	if o.store.blocks.Takes(o.tag) {
		return o.store.blocks.Read(ctx, blockcache.Object{URI: o.uri, Tag: o.tag, Size: o.size, Fetch: o.fetch}, buf, off)
	}
	return o.fetch(ctx, buf, off)
}

// fetch fills buf from offset off of the object, with retries that continue where a response broke off.
func (o *object) fetch(ctx context.Context, buf []byte, off int64) error {
	done := 0
	return o.store.retry(ctx, o.uri, func(ctx context.Context) error {
		n, err := o.try(ctx, buf[done:], off+int64(done))
		done += n
		return err
	})
}

// try makes one attempt to fill buf from offset off and returns the number of bytes read.
func (o *object) try(ctx context.Context, buf []byte, off int64) (n int, err error) {
	if len(buf) == 0 {
		return 0, nil
	}
	err = o.store.Attempt(ctx, func(ctx context.Context, alive func(n int)) error {
		a, err := o.bucket.get(ctx, o.key, span{first: off, length: int64(len(buf))}, o.ifMatch())
		if errors.Is(err, errBeyondEnd) {
			return fmt.Errorf("%w: it had %d bytes and has no byte at %d now", ErrChanged, o.size, off)
		}
		if err != nil {
			return err
		}
		defer a.body.Close() // the body was read to its end or is abandoned
		if err := o.check(a, off, int64(len(buf))); err != nil {
			return err
		}
		n, err = o.fill(a.body, buf, alive)
		return err
	})
	return n, err
}

// fill reads body into buf; if it can't fill all of it, it returns an error.
func (o *object) fill(body io.Reader, buf []byte, alive func(n int)) (int, error) {
	done := 0
	for done < len(buf) {
		n, err := body.Read(buf[done:])
		done += n
		o.store.stats.bytes.Add(int64(n))
		if n > 0 {
			alive(n)
		}
		if done == len(buf) {
			return done, nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return done, fmt.Errorf("the answer ended after %d of %d bytes: %w", done, len(buf), err)
		}
	}
	return done, nil
}

// checkTail checks that the first response for an object has the last n bytes.
func checkTail(a answer, n int64) error {
	want := min(n, a.size)
	if a.size >= 0 && a.length == want && a.first == a.size-want {
		return nil
	}
	return fmt.Errorf("asked for the last %d bytes, got %d from offset %d of %d: %w", n, a.length, a.first, a.size, errProtocol)
}

// ifMatch is the entity tag for If-Match, empty if the tag is weak: If-Match never matches weak tags.
func (o *object) ifMatch() string {
	if strings.HasPrefix(o.tag, "W/") {
		return ""
	}
	return o.tag
}

// check compares a response with the range requested and with the version that the first response described.
func (o *object) check(a answer, off, length int64) error {
	if a.tag != o.tag && a.tag != "" && o.tag != "" || a.size != o.size && a.size >= 0 {
		return fmt.Errorf("%w: it had %d bytes and tag %s, and has %d and %s now", ErrChanged, o.size, o.tag, a.size, a.tag)
	}
	if a.first == off && a.length == length && a.size == o.size {
		return nil
	}
	return fmt.Errorf("asked for %d bytes at %d of %d, got %d at %d of %d: %w", length, off, o.size, a.length, a.first, a.size, errProtocol)
}
