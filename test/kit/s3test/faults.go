// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package s3test

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Match selects requests that read objects (GET and HEAD). The zero value selects all of them.
type Match struct {
	Key   string // substring of "bucket/key"
	Skip  int    // number of matching requests to let pass first
	Count int    // number of requests to select after that; 0 means all
}

// Fault is a misbehavior of the server in place of a correct response.
type Fault struct {
	kind   kind
	after  int64 // bytes of the body to send before the fault, or the offset of the byte to corrupt
	status int
	code   string
	region string
}

type kind string

const (
	kindRefuse   kind = "refuse"
	kindReset    kind = "reset"
	kindStall    kind = "stall"
	kindTruncate kind = "truncate"
	kindCorrupt  kind = "corrupt"
	kindTrickle  kind = "trickle"
)

// Refuse responds with an error, such as 500 InternalError.
func Refuse(status int, code string) Fault {
	return Fault{kind: kindRefuse, status: status, code: code}
}

// Throttle responds with 503 SlowDown.
func Throttle() Fault { return Refuse(http.StatusServiceUnavailable, "SlowDown") }

// Deny responds with 403 AccessDenied.
func Deny() Fault { return Refuse(http.StatusForbidden, "AccessDenied") }

// Redirect responds with 301 PermanentRedirect and names the bucket's region.
func Redirect(region string) Fault {
	f := Refuse(http.StatusMovedPermanently, "PermanentRedirect")
	f.region = region
	return f
}

// Reset resets the connection (TCP RST) after the given number of bytes of the body, some of which the client may lose; -1 resets it
// before the response header.
func Reset(after int64) Fault { return Fault{kind: kindReset, after: after} }

// Truncate closes the connection after the given number of bytes of the body, fewer than its header announced; the client gets
// exactly those.
func Truncate(after int64) Fault { return Fault{kind: kindTruncate, after: after} }

// Stall sends the given number of bytes of the body (-1: not even the header), and the rest only when Injected.Release is called.
func Stall(after int64) Fault { return Fault{kind: kindStall, after: after} }

// Trickle sends the body at the given number of bytes per second, and the rest at once when Injected.Release is called.
func Trickle(rate int64) Fault { return Fault{kind: kindTrickle, after: rate} }

// Corrupt flips all bits of the object's byte at offset, in responses that include it.
func Corrupt(offset int64) Fault { return Fault{kind: kindCorrupt, after: offset} }

func (f Fault) String() string {
	if f.kind == kindRefuse {
		return fmt.Sprintf("refuse %d %s", f.status, f.code)
	}
	return fmt.Sprintf("%s %d", f.kind, f.after)
}

// Injected is a fault in effect.
type Injected struct {
	match Match
	fault Fault

	seen, hits int // guarded by Server.mu
	server     *Server
	release    sync.Once
	released   chan struct{}
}

// Inject applies f to matching requests until Remove. If several faults match a request, the one injected first applies.
func (s *Server) Inject(m Match, f Fault) *Injected {
	i := &Injected{match: m, fault: f, server: s, released: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, i)
	return i
}

// Hits is the number of requests to which the fault was applied.
func (i *Injected) Hits() int {
	i.server.mu.Lock()
	defer i.server.mu.Unlock()
	return i.hits
}

// Release lets stalled responses continue, and later ones pass.
func (i *Injected) Release() { i.release.Do(func() { close(i.released) }) }

// Remove ends the fault: requests pass, and stalled responses continue.
func (i *Injected) Remove() {
	i.Release()
	i.server.mu.Lock()
	defer i.server.mu.Unlock()
	i.match.Count = -1
}

// dueLocked counts a request and reports whether the fault applies to it.
func (i *Injected) dueLocked(r *Request) bool {
	reads := r.Key != "" && (r.Method == http.MethodGet || r.Method == http.MethodHead)
	if !reads || i.match.Count < 0 || !strings.Contains(r.Bucket+"/"+r.Key, i.match.Key) {
		return false
	}
	ordinal := i.seen - i.match.Skip
	i.seen++
	if ordinal < 0 || i.match.Count > 0 && ordinal >= i.match.Count {
		return false
	}
	i.hits++
	return true
}

// serve responds to r according to the fault.
func (i *Injected) serve(s *Server, w http.ResponseWriter, r *http.Request) {
	f := i.fault
	if f.kind == kindRefuse {
		if f.region != "" {
			w.Header().Set("X-Amz-Bucket-Region", f.region)
		}
		refuse(w, f.status, f.code)
		return
	}
	if f.after < 0 {
		i.breakOff(w, r)
	}
	good := httptest.NewRecorder()
	s.answer(good, r)
	body := good.Body.Bytes()
	maps.Copy(w.Header(), good.Header())
	if f.kind == kindCorrupt {
		corrupt(body, good.Header().Get("Content-Range"), f.after)
		w.WriteHeader(good.Code)
		_, _ = w.Write(body) // an error means that the client has gone; its test notices
		return
	}
	w.WriteHeader(good.Code)
	if f.kind == kindTrickle {
		i.trickle(w, r, body)
		return
	}
	sent := min(max(f.after, 0), int64(len(body)))
	if f.after >= 0 {
		_, _ = w.Write(body[:sent])
		_ = http.NewResponseController(w).Flush()
		i.breakOff(w, r)
	}
	_, _ = w.Write(body[sent:])
}

// trickle sends body slowly, until all is sent, the fault is released or the client has gone.
func (i *Injected) trickle(w http.ResponseWriter, r *http.Request, body []byte) {
	const pieces = 20 // a second
	ticker := time.NewTicker(time.Second / pieces)
	defer ticker.Stop()
	for n := int(max(i.fault.after/pieces, 1)); len(body) > 0; {
		select {
		case <-i.released:
			n = len(body)
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
		n = min(n, len(body))
		if _, err := w.Write(body[:n]); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		body = body[n:]
	}
}

// breakOff applies the fault in the middle of a response, and returns if the response is to continue.
func (i *Injected) breakOff(w http.ResponseWriter, r *http.Request) {
	switch i.fault.kind {
	case kindStall:
		select {
		case <-i.released:
			return
		case <-r.Context().Done():
		}
	case kindReset:
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // close by RST
			}
			_ = conn.Close()
		}
	}
	panic(http.ErrAbortHandler) // aborts the connection in net/http
}

// corrupt flips the byte of body that has the given offset in the object.
func corrupt(body []byte, contentRange string, offset int64) {
	first, _, _ := strings.Cut(strings.TrimPrefix(contentRange, "bytes "), "-")
	at := offset
	if n, err := strconv.ParseInt(first, 10, 64); err == nil {
		at -= n
	}
	if at >= 0 && at < int64(len(body)) {
		body[at] ^= 0xff
	}
}
