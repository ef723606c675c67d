// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// limits is how long a client may keep a connection busy, or to itself, without getting on.
type limits struct {
	header time.Duration // for a request's header, from its connection or its first byte on
	idle   time.Duration // between requests
	// A body may be of any size that a bucket takes, so its time grows with it: a body of n bytes has stall, and a second more
	// for each leastSpeed bytes.
	stall      time.Duration
	leastSpeed int64
}

// usual is what New gives a Server. Only tests have others.
var usual = limits{header: 30 * time.Second, idle: 2 * time.Minute, stall: 30 * time.Second, leastSpeed: 1 << 20}

// patience is how long a body of n bytes may take.
func (l limits) patience(n int64) time.Duration {
	return l.stall + time.Duration(n/l.leastSpeed)*time.Second
}

// incoming is a request's body, for which the client has patience's time: for what has come of it, as a body in chunks has no
// length. It goes for what nobody reads, too: net/http reads that, to get at the next request.
type incoming struct {
	io.ReadCloser
	control  *http.ResponseController
	limits   limits
	began    time.Time
	received int64
}

func newIncoming(r *request, l limits) *incoming {
	b := &incoming{ReadCloser: r.Body, control: r.control, limits: l, began: time.Now()}
	b.extend()
	return b
}

// Read reads on, and gives what is behind it its time: not before it, when the request may be over, and the connection another's.
func (b *incoming) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.received += int64(n)
	switch {
	case err == nil:
		b.extend()
	case errors.Is(err, io.EOF):
		_ = b.control.SetReadDeadline(time.Time{}) // net/http reads on, and takes a deadline for a client that has left
	}
	return n, err
}

func (b *incoming) extend() {
	_ = b.control.SetReadDeadline(b.began.Add(b.limits.patience(b.received))) // a connection that can't has none to keep
}

// Limits of a request's size.
const (
	headerBytes = 64 << 10
	maxKey      = 4096
)
