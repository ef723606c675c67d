// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kubeflow/datacache/objectcache/byterange"
)

// putParts streams the body into parts, and then stores the layout. An object that replaces itself stays: many clients that miss an
// object at the same time store it, while others already read it.
func (r *request) putParts() {
	p := r.newParts()
	fail := p.receive()
	_ = r.control.SetWriteDeadline(time.Now().Add(removeTimeout + r.server.limits.Stall)) // the deadline set for the request may have expired
	if fail != nil {
		p.remove()
		fail()
		return
	}
	earlier := r.partsOf()
	if earlier.isIntact(p) {
		p.remove()
		r.answer.WriteHeader(http.StatusCreated)
		return
	}
	if err := p.save(); err != nil {
		p.remove()
		r.refusePut(err)
		return
	}
	earlier.remove()
	r.answer.WriteHeader(http.StatusCreated)
}

// isIntact reports whether p, which may be nil, is an object with the same bytes as another, and none of its parts is missing.
func (p *parts) isIntact(other *parts) bool {
	return p != nil && p.Size == other.Size && p.Sum == other.Sum &&
		p.server.Membership.staleBefore(p.bucket, p.key).IsZero() && // otherwise find may take the layout for outdated
		p.check(p.Context(), byterange.Range{Length: p.Size}) == nil
}

// save writes the layout to the store, under the object's key.
func (p *parts) save() error {
	text, err := json.Marshal(p.layout)
	if err != nil {
		return err
	}
	w, err := p.server.cfg.Store.Create(p.bucket, p.key, int64(len(text)))
	if err != nil {
		return err
	}
	defer w.Abort()
	w.SetLayout()
	if _, err := w.Write(text); err != nil {
		return err
	}
	return w.Commit()
}

// receive streams the body into all parts. If that fails, it returns a function that answers the request.
func (p *parts) receive() (fail func()) {
	sum := xxh3.New()
	body := io.TeeReader(p.Body, sum)
	for n := range p.count() {
		part := io.LimitReader(body, p.length(n))
		if p.isHere(n) {
			fail = p.receiveHere(n, part)
		} else {
			fail = p.receiveThere(n, part)
		}
		if fail != nil {
			return fail
		}
	}
	whole := sum.Sum128().Bytes()
	p.Sum = hex.EncodeToString(whole[:])
	return nil
}

// receiveHere stores a part on this node.
func (p *parts) receiveHere(n int64, body io.Reader) (fail func()) {
	s, r := p.server, p.request
	w, err := s.cfg.Store.Create(r.bucket, partKey(p.key, p.name(n)), p.length(n))
	if err != nil {
		return func() { r.refusePut(err) }
	}
	defer w.Abort()
	buf, err := s.cfg.Memory.Buffer(r.Context(), 0)
	if err != nil {
		return r.busy
	}
	defer buf.Free()
	received, readErr, writeErr := receive(body, w, buf.Bytes)
	s.traffic.Received(r.bucket, received)
	if readErr != nil {
		return func() { r.brokenBody(readErr.Error()) }
	}
	if writeErr == nil {
		writeErr = w.Commit()
	}
	if writeErr != nil {
		return func() { r.refusePut(writeErr) }
	}
	return nil
}

// receiveThere sends a part to its member.
func (p *parts) receiveThere(n int64, part io.Reader) (fail func()) {
	s, r := p.server, p.request
	body := &forwardedBody{ReadCloser: io.NopCloser(part)}
	response, err := p.ask(r.Context(), n, &http.Request{Method: http.MethodPut, Body: body, ContentLength: p.length(n)})
	switch {
	case err != nil && body.broken.Load():
		return func() { r.brokenBody("it ended early or came too slowly") }
	case err != nil:
		s.cfg.Log.Debug("a part was not stored", "bucket", r.bucket, "error", err)
		return func() { r.unreachable() }
	}
	defer func() { _ = response.Body.Close() }() // opened for reading: closing can't lose data
	if response.StatusCode == http.StatusCreated {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10)) // only for the message
	return func() {
		copyHeaders(r.answer.Header(), response.Header, []string{"Retry-After", "Www-Authenticate"})
		r.answer.Header().Set("Connection", "close") // the rest of the body is not read
		r.refuse(response.StatusCode, "a node with a part: "+strings.TrimSpace(string(text)))
	}
}

// servePart answers a request of another member for a part. The token was reviewed as for any other request, and the header opens
// nothing: whoever may write into a bucket may replace all of its objects.
func (r *request) servePart() {
	name := r.Header.Get(partHeader)
	if len(name) > maxPartName {
		r.refuse(http.StatusBadRequest, partHeader+": too long")
		return
	}
	r.key = partKey(r.key, name)
	switch r.Method {
	case http.MethodHead:
		if !r.server.cfg.Store.Has(r.bucket, r.key) {
			r.answer.WriteHeader(http.StatusNotFound)
			return
		}
		r.answer.WriteHeader(http.StatusOK)
	case http.MethodGet:
		r.getPart()
	case http.MethodPut:
		r.keep()
	case http.MethodDelete:
		if err := r.server.cfg.Store.Delete(r.bucket, r.key); err != nil {
			r.refuse(http.StatusInsufficientStorage, "not removed: the disk fails")
			return
		}
		r.answer.WriteHeader(http.StatusNoContent)
	default:
		r.refuse(http.StatusMethodNotAllowed, r.Method+" is not for parts")
	}
}

// getPart sends a range of a part. A part never becomes outdated, whoever owned its key before.
func (r *request) getPart() {
	object, err := r.server.cfg.Store.Get(r.bucket, r.key)
	if err != nil {
		r.refuse(http.StatusNotFound, err.Error())
		return
	}
	defer func() { _ = object.Close() }() // opened for reading: closing can't lose data
	r.send(object)
}
