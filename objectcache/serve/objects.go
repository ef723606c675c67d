// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kubeflow/datacache/objectcache/budget"
	"github.com/kubeflow/datacache/objectcache/byterange"
	"github.com/kubeflow/datacache/objectcache/store"
)

// clockGrain is how far file modification times may lag behind the process's clock.
const clockGrain = 10 * time.Millisecond

// find opens an object, which the caller closes. A damaged object is a miss. So is an object written before this node became the
// key's owner, or before an absence about which others were not asked yet: another owner may have replaced it.
func (s *Server) find(bucket, key string) (*store.Object, error) {
	object, err := s.cfg.Store.Get(bucket, key)
	if err != nil {
		return nil, err
	}
	written := object.Written().Add(clockGrain)
	if !written.Before(s.Membership.staleBefore(bucket, key)) {
		return object, nil
	}
	_ = object.Close() // nothing was read from it
	if written.Before(s.cfg.Router.OwnedSince(bucket, key)) {
		_ = s.cfg.Store.Delete(bucket, key) // a failure is counted, and the next read tries again
	}
	return nil, store.ErrMiss
}

// get answers GET and HEAD from the store.
func (r *request) get() {
	object, err := r.server.find(r.bucket, r.key)
	if err != nil {
		r.miss()
		return
	}
	defer func() { _ = object.Close() }() // opened for reading: closing can't lose data
	r.server.traffic.Read(r.bucket, true)
	if object.IsLayout() {
		r.getParts(object)
		return
	}
	r.send(object)
}

// send sends an object, or the range of it that is asked for.
func (r *request) send(object *store.Object) {
	asked, ok := byterange.Of(r.answer, r.Request, object.Size())
	if !ok {
		return
	}
	body, err := object.Reader(asked.First, asked.Length)
	if err != nil {
		r.miss()
		return
	}
	r.begin(asked, object.Size())
	if r.Method == http.MethodHead {
		return
	}
	// net/http's ResponseWriter passes a LimitedReader over a file to the connection's ReadFrom, which uses sendfile. An error
	// leaves the body shorter than its Content-Length, so the client notices.
	sent, _ := io.Copy(r.answer.ResponseWriter, body)
	r.server.traffic.Sent(r.bucket, sent)
}

// begin sends the header of a response with a range of an object of size bytes.
func (r *request) begin(asked byterange.Range, size int64) {
	r.answer.Header().Set("Content-Type", "application/octet-stream")
	status := asked.Header(r.answer.Header(), size)
	r.server.limits.Extend(r.answer, asked.Length)
	r.answer.WriteHeader(status)
}

// miss responds that there is no such object.
func (r *request) miss() {
	r.server.traffic.Read(r.bucket, false)
	r.refuse(http.StatusNotFound, store.ErrMiss.Error())
}

// put stores the body, in parts if it is long.
func (r *request) put() {
	if r.Header.Get("Content-Range") != "" { // RFC 9110, section 14.5
		r.refuse(http.StatusBadRequest, "Content-Range: an object is put as a whole")
		return
	}
	if r.server.spreads(r.ContentLength) {
		r.putParts()
		return
	}
	earlier := r.partsOf()
	if r.keep() {
		earlier.remove()
	}
}

// keep streams the body into the store and answers the request. It reports whether the object is stored.
func (r *request) keep() bool {
	s := r.server
	buf, err := s.cfg.Memory.Buffer(r.Context(), 0)
	if err != nil {
		r.busy()
		return false
	}
	defer buf.Free()
	w, err := s.cfg.Store.Create(r.bucket, r.key, r.ContentLength)
	if err != nil {
		r.refusePut(err)
		return false
	}
	defer w.Abort()
	received, readErr, writeErr := receive(r.Body, w, buf.Bytes)
	s.traffic.Received(r.bucket, received)
	if readErr == nil && writeErr == nil {
		writeErr = w.Commit()
	}
	r.extendStall()
	if readErr != nil {
		r.brokenBody(readErr.Error())
		return false
	}
	if writeErr != nil {
		r.refusePut(writeErr)
		return false
	}
	r.answer.WriteHeader(http.StatusCreated)
	return true
}

// brokenBody responds to a PUT whose body did not arrive.
func (r *request) brokenBody(why string) {
	r.answer.Header().Set("Connection", "close")
	r.refuse(http.StatusBadRequest, "the body broke off: "+why)
}

// receive copies the body into w. readErr is an error of the client, writeErr one of the store.
func receive(body io.Reader, w io.Writer, buf []byte) (received int64, readErr, writeErr error) {
	for {
		n, err := body.Read(buf)
		received += int64(n)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
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

// busy responds to a request that gets no memory.
func (r *request) busy() {
	r.answer.Header().Set("Connection", "close") // the rest of the body is not read
	unavailable(budget.ErrFull.Error()).answer(r)
}

// refusePut responds to a PUT that the store rejected.
func (r *request) refusePut(err error) {
	if errors.Is(err, store.ErrTooLarge) {
		r.answer.Header().Set("Connection", "close") // otherwise net/http reads part of the body before it responds
		r.refuse(http.StatusRequestEntityTooLarge, err.Error())
		return
	}
	r.server.disk.warn("an object was not stored", err)
	r.refuse(http.StatusInsufficientStorage, "not stored: the disk or the bucket has no room, or the disk fails")
}

// delete removes an object.
func (r *request) delete() {
	earlier := r.partsOf()
	if err := r.server.cfg.Store.Delete(r.bucket, r.key); err != nil {
		r.server.disk.warn("an object was not removed", err)
		r.refuse(http.StatusInsufficientStorage, "not removed: the disk fails")
		return
	}
	earlier.remove()
	r.answer.WriteHeader(http.StatusNoContent)
}

// diskLog logs failures of the disk, at most one every ten seconds, since a failing disk makes many requests fail.
type diskLog struct {
	log   *slog.Logger
	store *store.Store
	last  atomic.Int64 // Unix time of the last line
}

func (d *diskLog) warn(what string, err error) {
	now := time.Now().Unix()
	if last := d.last.Load(); now-last < 10 || !d.last.CompareAndSwap(last, now) {
		return
	}
	d.log.Warn(what, "error", err, "failures", d.store.Failures())
}
