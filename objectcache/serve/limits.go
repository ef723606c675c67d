// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/kubeflow/datacache/objectcache/pace"
)

// limits are the times after which a connection without progress is closed.
type limits struct {
	header      time.Duration // for a request's header
	idle        time.Duration // between requests
	pace.Limits               // of bodies
}

// defaultLimits are the limits of New. Only tests use others.
var defaultLimits = limits{header: 30 * time.Second, idle: 2 * time.Minute, Limits: pace.Default}

// requestBody extends the connection's read deadline as the body arrives, to the time that limits give the bytes received so far: a chunked
// body has no announced length. The deadline also covers a body that the handler does not read, which net/http reads and discards.
type requestBody struct {
	io.ReadCloser
	control  *http.ResponseController
	limits   limits
	began    time.Time
	received int64
}

func newRequestBody(r *request, l limits) *requestBody {
	b := &requestBody{ReadCloser: r.Body, control: r.control, limits: l, began: time.Now()}
	b.extend()
	return b
}

// Read reads from the body. It must set the deadline after reading, not before, when the request may have ended and the connection
// may already serve the next one.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.received += int64(n)
	switch {
	case err == nil:
		b.extend()
	case errors.Is(err, io.EOF):
		_ = b.control.SetReadDeadline(time.Time{}) // net/http keeps reading, and would treat an expired deadline as a disconnect
	}
	return n, err
}

func (b *requestBody) extend() {
	_ = b.control.SetReadDeadline(b.began.Add(b.limits.Time(b.received))) // fails only if the connection has no deadlines
}

// Limits of a request's size.
const (
	headerBytes = 64 << 10
	maxKey      = 4096
)
