// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// pipeBytes is the maximum number of unread bytes in one direction of a connection, like the buffers of two sockets.
	pipeBytes = 64 << 10
	// givenUp is the timeout after which a connection to a host that vanished fails.
	givenUp = time.Minute
)

// pipe is one direction of a connection. Bytes are readable once they are due. It is protected by the network's mu.
type pipe struct {
	net      *network
	from, to *host
	random   *rand.Rand
	changed  sync.Cond
	timer    *time.Timer // wakes a goroutine that waits for a time

	segments []segment
	held     int       // number of bytes in segments
	due      time.Time // of the last segment
	ended    bool      // the writer has closed its end
	left     time.Time // when the writer can know that the reader closed its end; zero: the reader did not
	failed   error     // error for the reader
	broken   error     // error for the writer
	readBy   time.Time
	writeBy  time.Time
}

// segment is the data of one write.
type segment struct {
	data []byte
	due  time.Time
}

func newPipe(n *network, from, to *host, link string, number uint64) *pipe {
	p := &pipe{net: n, from: from, to: to, random: rand.New(rand.NewPCG(n.seed^number, hashOf(link)))}
	p.changed.L = &n.mu
	p.timer = time.AfterFunc(time.Hour, p.changed.Broadcast)
	p.timer.Stop()
	return p
}

// hashOf is a hash of a text (FNV-1a), the same in every process.
func hashOf(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// waitLocked waits for a change, at most until the earliest of the non-zero times.
func (p *pipe) waitLocked(times ...time.Time) {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	if !first.IsZero() {
		p.timer.Reset(time.Until(first))
	}
	p.changed.Wait()
}

func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// stuckLocked reports whether nothing can arrive because a host is frozen or has vanished.
func (p *pipe) stuckLocked() bool { return p.from.frozen || p.to.frozen || p.from.dead || p.to.dead }

func (p *pipe) read(to []byte) (int, error) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	for {
		var next time.Time
		switch {
		case p.failed != nil:
			return 0, opError("read", p.failed)
		case passed(p.readBy):
			return 0, opError("read", os.ErrDeadlineExceeded)
		case len(to) == 0:
			return 0, nil
		case p.stuckLocked():
		case len(p.segments) == 0 && p.ended:
			return 0, io.EOF
		case len(p.segments) > 0 && passed(p.segments[0].due):
			return p.takeLocked(to), nil
		case len(p.segments) > 0:
			next = p.segments[0].due
		}
		p.waitLocked(next, p.readBy)
	}
}

func (p *pipe) takeLocked(to []byte) int {
	n := 0
	for n < len(to) && len(p.segments) > 0 && passed(p.segments[0].due) {
		s := &p.segments[0]
		k := copy(to[n:], s.data)
		n += k
		if s.data = s.data[k:]; len(s.data) == 0 {
			p.segments = p.segments[1:]
		}
	}
	p.held -= n
	p.changed.Broadcast()
	return n
}

func (p *pipe) write(from []byte) (int, error) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	n := 0
	for {
		switch {
		case p.broken != nil:
			return n, opError("write", p.broken)
		case passed(p.writeBy):
			return n, opError("write", os.ErrDeadlineExceeded)
		case passed(p.left) && !p.stuckLocked():
			return n, opError("write", syscall.EPIPE)
		case n == len(from):
			return n, nil
		case p.held < pipeBytes:
			n += p.putLocked(from[n:])
		default:
			p.waitLocked(p.writeBy)
		}
	}
}

func (p *pipe) putLocked(from []byte) int {
	k := min(len(from), pipeBytes-p.held)
	if !p.left.IsZero() {
		return k // to nobody
	}
	due := time.Now().Add(time.Duration(float64(p.net.latency) * (0.5 + p.random.Float64())))
	if due.Before(p.due) {
		due = p.due
	}
	p.due = due.Add(p.from.pace * time.Duration(k) / 1024)
	p.segments = append(p.segments, segment{append([]byte(nil), from[:k]...), p.due})
	p.held += k
	p.changed.Broadcast()
	return k
}

func opError(op string, err error) error { return &net.OpError{Op: op, Net: "tcp", Err: err} }

// endLocked makes reads return what was written, then io.EOF.
func (p *pipe) endLocked() {
	p.ended = true
	if p.broken == nil {
		p.broken = net.ErrClosed
	}
	p.changed.Broadcast()
}

// abandonLocked is called when the reader closes its end: unread bytes are lost. The writer learns of it a round trip later.
func (p *pipe) abandonLocked() {
	if p.failed == nil {
		p.failed = net.ErrClosed
	}
	p.segments, p.held = nil, 0
	p.left = time.Now().Add(4 * p.net.latency)
	p.changed.Broadcast()
}

// failLocked breaks the pipe with an error for each end. An earlier error is kept.
func (p *pipe) failLocked(reader, writer error) {
	if p.failed == nil {
		p.failed = reader
	}
	if p.broken == nil {
		p.broken = writer
	}
	p.changed.Broadcast()
}

// setLocked sets one of the pipe's deadlines.
func (p *pipe) setLocked(deadline *time.Time, t time.Time) {
	*deadline = t
	p.changed.Broadcast()
}
