// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objectcache/store"
)

// found is what of an object is asked for, open; who has it closes its object.
type found struct {
	*store.Object
	part
	bucket string
}

// find opens what is asked for by a Range header, all of it if that is empty. Whatever is wrong with an object, it is a miss.
func (s *Server) find(bucket, key, byRange string) (*found, *refusal) {
	object, err := s.cfg.Store.Get(bucket, key)
	if err != nil {
		return nil, &refusal{status: http.StatusNotFound, why: store.ErrMiss.Error()}
	}
	asked, ok := parseRange(byRange, object.Size())
	if !ok {
		_ = object.Close() // was not even read from
		return nil, &refusal{
			status: http.StatusRequestedRangeNotSatisfiable, why: fmt.Sprintf("the object has %d bytes", object.Size()),
			name: "Content-Range", value: fmt.Sprintf("bytes */%d", object.Size()),
		}
	}
	return &found{object, asked, bucket}, nil
}

// status is what an answer with f has.
func (f *found) status() int {
	if f.partial {
		return http.StatusPartialContent
	}
	return http.StatusOK
}

// contentRange says which part of the object f is.
func (f *found) contentRange() string {
	return fmt.Sprintf("bytes %d-%d/%d", f.first, f.first+f.length-1, f.Size())
}

// get answers GET and HEAD from the store.
func (s *Server) get(r *request) {
	var byRange string
	if r.Method == http.MethodGet && r.Header.Get("If-Range") == "" {
		byRange = r.Header.Get("Range")
	}
	f, no := s.find(r.bucket, r.key, byRange)
	if no != nil {
		if no.status == http.StatusNotFound {
			s.metrics.miss(r.bucket)
		}
		no.answer(r)
		return
	}
	if r.direct != nil && r.direct.takeOver(r, f) {
		return
	}
	defer func() { _ = f.Close() }() // only read from
	body, err := f.Reader(f.first, f.length)
	if err != nil {
		s.metrics.miss(r.bucket)
		r.refuse(http.StatusNotFound, store.ErrMiss.Error())
		return
	}
	s.metrics.hit(r.bucket)
	header := r.answer.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Accept-Ranges", "bytes")
	header.Set("Content-Length", strconv.FormatInt(f.length, 10))
	if f.partial {
		header.Set("Content-Range", f.contentRange())
	}
	_ = r.control.SetWriteDeadline(time.Now().Add(s.limits.patience(f.length)))
	r.answer.WriteHeader(f.status())
	if r.Method == http.MethodHead {
		return
	}
	// By the connection's own ReadFrom, which has the kernel send the file. An error cuts the answer short of its
	// Content-Length, so the client knows.
	sent, _ := io.Copy(r.answer.ResponseWriter, body)
	s.metrics.sent(r.bucket, sent)
}

// put takes an object into the store, as it comes.
func (s *Server) put(r *request) {
	if r.Header.Get("Content-Range") != "" { // RFC 9110, section 14.5
		r.refuse(http.StatusBadRequest, "Content-Range: an object is put as a whole")
		return
	}
	w, err := s.cfg.Store.Create(r.bucket, r.key, r.ContentLength)
	if err != nil {
		s.refusePut(r, err)
		return
	}
	defer w.Abort()
	received, readErr, writeErr := receive(r, w)
	s.metrics.received(r.bucket, received)
	if readErr == nil && writeErr == nil {
		writeErr = w.Commit()
	}
	_ = r.control.SetWriteDeadline(time.Now().Add(s.limits.stall)) // the body may have outlasted the request's own
	if readErr != nil {
		r.answer.Header().Set("Connection", "close")
		r.refuse(http.StatusBadRequest, "the body broke off: "+readErr.Error())
		return
	}
	if writeErr != nil {
		s.refusePut(r, writeErr)
		return
	}
	r.answer.WriteHeader(http.StatusCreated)
}

// receive copies the body into w and tells the client's failures from the store's.
func receive(r *request, w io.Writer) (received int64, readErr, writeErr error) {
	buf := buffers.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer buffers.Put(buf)
	for {
		n, err := r.Body.Read(*buf)
		received += int64(n)
		if n > 0 {
			if _, err := w.Write((*buf)[:n]); err != nil {
				return received, nil, err
			}
		}
		if errors.Is(err, io.EOF) {
			return received, nil, nil
		}
		if err != nil {
			return received, err, nil
		}
	}
}

// buffers are for bodies on their way in: large enough that a read is worth its system call.
var buffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// refusePut answers what the store did not take.
func (s *Server) refusePut(r *request, err error) {
	if errors.Is(err, store.ErrTooLarge) {
		r.answer.Header().Set("Connection", "close") // else net/http waits for a part of the body before it answers
		r.refuse(http.StatusRequestEntityTooLarge, err.Error())
		return
	}
	s.logDisk("an object was not stored", err)
	r.refuse(http.StatusInsufficientStorage, "not stored: the disk or the bucket has no room, or the disk fails")
}

// delete removes an object.
func (s *Server) delete(r *request) {
	if err := s.cfg.Store.Delete(r.bucket, r.key); err != nil {
		s.logDisk("an object was not removed", err)
		r.refuse(http.StatusInsufficientStorage, "not removed: the disk fails")
		return
	}
	r.answer.WriteHeader(http.StatusNoContent)
}

// logDisk says what is wrong with the disk, at most every ten seconds: a disk fails for all requests or for none.
func (s *Server) logDisk(what string, err error) {
	now := time.Now().Unix()
	if last := s.lastLog.Load(); now-last < 10 || !s.lastLog.CompareAndSwap(last, now) {
		return
	}
	s.cfg.Log.Warn(what, "error", err, "failures", s.cfg.Store.Failures())
}
