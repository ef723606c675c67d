// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pace ends connections whose clients take bodies too slowly.
package pace

import (
	"io"
	"net/http"
	"time"
)

// Limits say how long a body of n bytes may take: Stall, plus one second per LeastSpeed bytes.
type Limits struct {
	Stall      time.Duration
	LeastSpeed int64
}

// Default are the limits of servers.
var Default = Limits{Stall: 30 * time.Second, LeastSpeed: 1 << 20}

// Time is how long a body of n bytes may take.
func (l Limits) Time(n int64) time.Duration {
	return l.Stall + time.Duration(n/l.LeastSpeed)*time.Second
}

// Extend gives the client time to receive the next n bytes of a response.
func (l Limits) Extend(w http.ResponseWriter, n int64) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(l.Time(n))) // fails only if the connection has no deadlines
}

// Writer returns a writer of a response of unknown length, which fails when the client is slower than the limits.
func (l Limits) Writer(w http.ResponseWriter) io.Writer {
	return &writer{to: w, control: http.NewResponseController(w), limits: l, began: time.Now()}
}

type writer struct {
	to      http.ResponseWriter
	control *http.ResponseController
	limits  Limits
	began   time.Time
	written int64
}

// Write writes to the client, and extends the deadline according to the bytes that were written.
func (p *writer) Write(b []byte) (int, error) {
	deadline := time.Now()
	if slowest := p.began.Add(p.limits.Time(p.written)); slowest.After(deadline) {
		deadline = slowest
	}
	_ = p.control.SetWriteDeadline(deadline.Add(p.limits.Stall)) // fails only if the connection has no deadlines
	n, err := p.to.Write(b)
	p.written += int64(n)
	return n, err
}
