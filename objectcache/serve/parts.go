// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/objectcache/byterange"
	"github.com/kubeflow/datacache/objectcache/store"
)

// An object longer than Config.PartSize is stored in parts on several members, so that it does not fill one disk. The member that owns
// the object's key stores a layout under the key, which names the member of each part: a part stays where it is when the members
// change. Parts are never overwritten; an object that replaces another has parts with another ID.

const (
	// partHeader is ID/NUMBER of the part that a forwarded request is for. Without hopHeader it is ignored.
	partHeader = "Datacache-Part"
	// maxLayout is the maximum length of a layout in bytes; a layout has the names of the members.
	maxLayout = 1 << 20
	// maxPartName is the maximum length of the value of partHeader.
	maxPartName = 64
	// layoutHeader marks a response to a forwarded GET whose body is the object's layout: the forwarding member requests the parts.
	layoutHeader = "Datacache-Layout"
	// partsAtOnce is how many requests that transfer no objects are sent for one object concurrently.
	partsAtOnce = 16
	// removeTimeout is the time limit for the removal of an object's parts.
	removeTimeout = time.Minute
)

// errNoPart says that a part was evicted or damaged, so that the object is gone.
var errNoPart = errors.New("a part is missing")

// layout says where the parts of an object are: part n is on the member called Members[n%len(Members)].
type layout struct {
	ID      string   `json:"id"` // different for each stored object
	Size    int64    `json:"size"`
	Part    int64    `json:"part"` // length of each part but the last
	Sum     string   `json:"sum"`  // XXH3-128 of the object
	Members []string `json:"members"`
}

func (l *layout) count() int64         { return (l.Size + l.Part - 1) / l.Part }
func (l *layout) length(n int64) int64 { return min(l.Part, l.Size-n*l.Part) }
func (l *layout) member(n int64) string {
	return l.Members[n%int64(len(l.Members))]
}
func (l *layout) name(n int64) string { return l.ID + "/" + strconv.FormatInt(n, 10) }

// partKey is the key of a part in the store. A client's key contains no space.
func partKey(key, name string) string { return key + " " + name }

// parts are the parts of an object, on behalf of a client's request.
type parts struct {
	layout
	*request
	key string // of the object
}

// spreads reports whether an object of size bytes (-1: unknown) is stored in parts.
func (s *Server) spreads(size int64) bool {
	return s.cfg.PartSize > 0 && size > s.cfg.PartSize && s.cfg.Router.Members() > 1
}

// fits returns store.ErrTooLarge if the object can't fit into its bucket.
func (r *request) fits() error {
	s := r.server
	if !s.spreads(r.ContentLength) {
		return s.cfg.Store.Fits(r.bucket, r.key, r.ContentLength)
	}
	l := layout{Size: min(r.ContentLength, 1<<62), Part: s.cfg.PartSize}
	members := int64(s.cfg.Router.Members())
	if err := s.cfg.Store.Fits(r.bucket, r.key, (l.count()+members-1)/members*l.Part); err != nil {
		return fmt.Errorf("the parts on one of %d nodes: %w", members, err)
	}
	return nil
}

// decodeParts decodes a layout; nil if it is invalid.
func (r *request) decodeParts(key string, text []byte) *parts {
	p := &parts{request: r, key: key}
	if err := json.Unmarshal(text, &p.layout); err != nil || p.Size <= 0 || p.Part <= 0 || len(p.Members) == 0 {
		return nil
	}
	return p
}

// partsOf returns the parts of the object that is stored under the request's key; nil if it has none.
func (r *request) partsOf() *parts {
	text, err := r.server.cfg.Store.ReadLayout(r.bucket, r.key)
	if err != nil {
		return nil
	}
	return r.decodeParts(r.key, text)
}

// readLayout returns the bytes of a layout.
func readLayout(object *store.Object) ([]byte, error) {
	body, err := object.Reader(0, object.Size())
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(body, maxLayout))
}

// getParts answers GET and HEAD of an object in parts, or a forwarded GET with the layout.
func (r *request) getParts(object *store.Object) {
	text, err := readLayout(object)
	if err != nil {
		r.miss()
		return
	}
	if r.Method == http.MethodGet && r.Header.Get(hopHeader) != "" {
		r.answer.Header().Set(layoutHeader, "1")
		r.answer.Header().Set("Content-Type", "application/json")
		r.answer.WriteHeader(http.StatusOK)
		_, _ = r.answer.Write(text) // the other member notices text that ends early
		return
	}
	r.sendParts(text)
}

// sendParts answers GET and HEAD of the object with a layout.
func (r *request) sendParts(text []byte) {
	p := r.decodeParts(r.key, text)
	if p == nil {
		r.miss()
		return
	}
	asked, ok := byterange.Of(r.answer, r.Request, p.Size)
	if !ok {
		return
	}
	err := p.check(r.Context(), asked)
	if err == nil && r.Method == http.MethodHead {
		r.begin(asked, p.Size)
		return
	}
	begun := false
	if err == nil {
		err = p.copy(r.answer.ResponseWriter, asked, func() {
			r.begin(asked, p.Size)
			begun = true
		})
	}
	if err == nil || begun {
		return // the client notices a body shorter than its Content-Length
	}
	r.extendStall()
	switch {
	case errors.Is(err, errNoPart):
		r.miss()
	default:
		r.server.cfg.Log.Debug("a part can't be read", "bucket", r.bucket, "error", err)
		r.unreachable()
	}
}

// check returns errNoPart if a part of a range is missing, and another error if that is not known. The parts become the most
// recently used of their members, so that they are not evicted while the range is being read.
func (p *parts) check(ctx context.Context, asked byterange.Range) error {
	return p.each(ctx, asked.First/p.Part, (asked.First+asked.Length-1)/p.Part, func(ctx context.Context, n int64) error {
		if p.isHere(n) {
			if !p.server.cfg.Store.Has(p.bucket, partKey(p.key, p.name(n))) {
				return errNoPart
			}
			return nil
		}
		response, err := p.ask(ctx, n, &http.Request{Method: http.MethodHead})
		if err != nil {
			return err
		}
		_ = response.Body.Close() // it is empty
		return partStatus(response, http.StatusOK)
	})
}

// partStatus returns an error if a response has another status.
func partStatus(response *http.Response, want int) error {
	switch response.StatusCode {
	case want:
		return nil
	case http.StatusNotFound:
		return errNoPart
	default:
		return errors.New("a node with a part answered " + response.Status)
	}
}

// each calls do for parts first to last, several at a time, until one fails.
func (p *parts) each(ctx context.Context, first, last int64, do func(ctx context.Context, n int64) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(partsAtOnce)
	for n := first; n <= last && ctx.Err() == nil; n++ {
		group.Go(func() error { return do(ctx, n) })
	}
	return group.Wait()
}

// copy writes a range of the object. It calls begin when the first part is open.
func (p *parts) copy(to io.Writer, asked byterange.Range, begin func()) error {
	end := asked.First + asked.Length
	for at := asked.First; at < end; {
		n := at / p.Part
		from := at - n*p.Part
		length := min(p.length(n)-from, end-at)
		body, done, err := p.open(n, from, length)
		if err != nil {
			return err
		}
		if at == asked.First {
			begin()
		}
		sent, err := io.Copy(to, body)
		_ = done.Close() // opened for reading: closing can't lose data
		at += sent
		if p.isHere(n) {
			p.server.traffic.Sent(p.bucket, sent)
		}
		if err == nil && sent < length {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// open returns a reader of length bytes of a part, and what to close afterwards.
func (p *parts) open(n, from, length int64) (io.Reader, io.Closer, error) {
	if p.isHere(n) {
		object, err := p.server.cfg.Store.Get(p.bucket, partKey(p.key, p.name(n)))
		if err != nil {
			return nil, nil, errNoPart
		}
		body, err := object.Reader(from, length)
		if err != nil || object.Size() != p.length(n) {
			_ = object.Close() // nothing was read from it
			return nil, nil, errNoPart
		}
		return body, object, nil
	}
	response, err := p.ask(p.Context(), n, &http.Request{
		Method: http.MethodGet, Header: http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, from+length-1)}},
	})
	if err != nil {
		return nil, nil, err
	}
	if err = partStatus(response, http.StatusPartialContent); err == nil && response.ContentLength != length {
		err = errNoPart
	}
	if err != nil {
		_ = response.Body.Close() // nothing is read from it
		return nil, nil, err
	}
	return response.Body, response.Body, nil
}

func (p *parts) isHere(n int64) bool { return p.member(n) == p.server.cfg.Router.Self() }

// ask sends a request for part n to the member that has it, with the client's token. The caller sets method and body of out, and closes the
// response's body.
func (p *parts) ask(ctx context.Context, n int64, out *http.Request) (*http.Response, error) {
	to, known := p.server.cfg.Router.Named(p.member(n))
	if !known {
		return nil, fmt.Errorf("%s has a part and is not a member now", p.member(n))
	}
	out.URL, out.Host = &url.URL{Opaque: prefix + p.bucket + "/" + p.key}, to.Address
	if out.Header == nil {
		out.Header = http.Header{}
	}
	for name, value := range map[string]string{hopHeader: "1", partHeader: p.name(n), "User-Agent": ""} {
		out.Header.Set(name, value)
	}
	copyHeaders(out.Header, p.Header, []string{"Authorization"})
	return p.server.Peers.ask(out.WithContext(ctx), to, &p.server.traffic.parts)
}

// remove removes the parts from their members. Those that can't be removed are evicted some day, since nobody reads them. p may be nil.
func (p *parts) remove() {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.Context()), removeTimeout)
	defer cancel()
	_ = p.each(ctx, 0, p.count()-1, func(ctx context.Context, n int64) error {
		if p.isHere(n) {
			_ = p.server.cfg.Store.Delete(p.bucket, partKey(p.key, p.name(n))) // the store counts failures
			return nil
		}
		if response, err := p.ask(ctx, n, &http.Request{Method: http.MethodDelete}); err == nil {
			_ = response.Body.Close() // it is empty
		}
		return nil
	})
}

// newParts chooses the members for the object that a PUT stores.
func (r *request) newParts() *parts {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	p := &parts{request: r, key: r.key, layout: layout{ID: hex.EncodeToString(id[:]), Size: r.ContentLength, Part: r.server.cfg.PartSize}}
	for _, m := range r.server.cfg.Router.Rotation(r.bucket, r.key) {
		if int64(len(p.Members)) < p.count() && !r.server.Peers.isSuspended(m) {
			p.Members = append(p.Members, m.Name)
		}
	}
	return p
}
