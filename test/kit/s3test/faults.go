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

// Match picks requests that read objects (GET and HEAD). The zero value picks
// all of them.
type Match struct {
	Key   string // a part of "bucket/key"
	Skip  int    // let so many matching requests pass first
	Count int    // then pick so many; 0 is all
}

// Fault is something to do to a request instead of answering it well.
type Fault struct {
	kind   kind
	after  int64 // bytes of the body that go out first, or the object's byte to corrupt
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

// Refuse answers with an error, such as 500 InternalError.
func Refuse(status int, code string) Fault {
	return Fault{kind: kindRefuse, status: status, code: code}
}

// Throttle answers 503 SlowDown.
func Throttle() Fault { return Refuse(http.StatusServiceUnavailable, "SlowDown") }

// Deny answers 403 AccessDenied.
func Deny() Fault { return Refuse(http.StatusForbidden, "AccessDenied") }

// Redirect answers 301 PermanentRedirect and names the bucket's region.
func Redirect(region string) Fault {
	f := Refuse(http.StatusMovedPermanently, "PermanentRedirect")
	f.region = region
	return f
}

// Reset resets the connection (TCP RST) after so many bytes of the body, of
// which the client may lose some; -1 is before the answer's header.
func Reset(after int64) Fault { return Fault{kind: kindReset, after: after} }

// Truncate closes the connection after so many bytes of the body, fewer than
// its header promised; the client gets exactly those.
func Truncate(after int64) Fault { return Fault{kind: kindTruncate, after: after} }

// Stall sends so many bytes of the body (-1: not even the header) and the rest
// only when Injected.Release is called.
func Stall(after int64) Fault { return Fault{kind: kindStall, after: after} }

// Trickle sends the body at so many bytes a second, and the rest at once when
// Injected.Release is called.
func Trickle(rate int64) Fault { return Fault{kind: kindTrickle, after: rate} }

// Corrupt flips all bits of the object's byte at offset, in answers that have it.
func Corrupt(offset int64) Fault { return Fault{kind: kindCorrupt, after: offset} }

func (f Fault) String() string {
	if f.kind == kindRefuse {
		return fmt.Sprintf("refuse %d %s", f.status, f.code)
	}
	return fmt.Sprintf("%s %d", f.kind, f.after)
}

// Injected is a fault at work.
type Injected struct {
	match Match
	fault Fault

	seen, hits int // guarded by Server.mu
	server     *Server
	release    sync.Once
	released   chan struct{}
}

// Inject makes requests that match suffer f, until Remove. Of several faults
// that match a request, the one injected first is done.
func (s *Server) Inject(m Match, f Fault) *Injected {
	i := &Injected{match: m, fault: f, server: s, released: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, i)
	return i
}

// Hits is the number of requests the fault has been done to.
func (i *Injected) Hits() int {
	i.server.mu.Lock()
	defer i.server.mu.Unlock()
	return i.hits
}

// Release lets answers that the fault stalled go on, and later ones pass.
func (i *Injected) Release() { i.release.Do(func() { close(i.released) }) }

// Remove ends the fault: requests pass, stalled answers go on.
func (i *Injected) Remove() {
	i.Release()
	i.server.mu.Lock()
	defer i.server.mu.Unlock()
	i.match.Count = -1
}

// dueLocked counts a request and reports whether the fault is to be done to it.
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

// serve answers r as the fault wants it.
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
		_, _ = w.Write(body) // the client has gone: its test will tell
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

// trickle sends body slowly, until it is all sent, the fault is released or the
// client has gone.
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

// breakOff does what the fault does in mid-answer, and returns if the answer is
// to go on.
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
	panic(http.ErrAbortHandler) // net/http's way to drop a connection
}

// corrupt flips the byte of body that is the object's at offset.
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
