// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"time"

	"golang.org/x/net/http2"
)

const (
	alpn = "h2" // TLS's name of HTTP/2, RFC 9113 section 3.2

	// handshakeTime is how long a new connection may take to say that it speaks HTTP/2.
	handshakeTime = time.Minute
	// minPause and maxPause are how long to wait after a connection could not be accepted.
	minPause, maxPause = 5 * time.Millisecond, time.Second
	// silence is after how long without a frame from the client a PING is sent.
	silence = time.Minute
	// lastWrite is how long the last frames of a connection may take, and its peer to close its side.
	lastWrite = time.Second
	// drainWait is how long a client may go on opening streams after the first GOAWAY: it ends with the answer to a PING.
	drainWait = time.Second

	// maxStreams is how many calls a connection may have running. A call that its client reset counts until its
	// handler has returned, so that resets buy nothing (CVE-2023-44487).
	maxStreams = 512
	// slowest is the rate in bytes a second that a long message must come at, see Config.RequestTimeout.
	slowest = 64 << 10
	// maxHeaderList bounds a request's header fields, each counted as RFC 9113 section 6.5.2 says.
	maxHeaderList = 64 << 10
	// maxRead bounds a frame together with the CONTINUATION frames that belong to it, so that empty ones end too.
	maxRead = 4 * maxHeaderList
	// maxTable bounds the table of header compression in either direction.
	maxTable = 4096
	// maxControl bounds the control frames that wait to be written: a peer that asks for answers must read them.
	maxControl = 64 << 10

	// quantum is how many bytes a stream may write in one turn, see peerSettings.piece.
	quantum = 512 << 10

	// maxUnsent is TCP_NOTSENT_LOWAT: how many bytes a connection holds that its peer has no room for.
	maxUnsent = 1 << 20
	// Where the first round trip takes less than nearRTT, SO_SNDBUF is nearBuffer, of which Linux makes twice as much: 5 GB/s and more at
	// that distance. Elsewhere the kernel makes buffers as long as bandwidth and delay want them.
	nearRTT    = 100 * time.Microsecond
	nearBuffer = 384 << 10

	// defaultWindow and defaultFrame are what a peer that says nothing takes, RFC 9113 section 6.5.2.
	defaultWindow, defaultFrame = 65535, 16384
	maxWindow                   = 1<<31 - 1
	// connWindow is what a connection may send beyond what was read; every stream has the default.
	connWindow = 1 << 20
)

// A connection may make the server look at so many frames a second that carry nothing: pings, settings, priorities,
// empty data, unknown ones; and end so many calls before their time. Peers that measure bandwidth send a ping a
// round trip, a few thousand a second on one machine.
const (
	maxIdle   = 20000
	maxResets = 1000
)

// rate counts events and tells when there are too many in one second. The zero value with a limit is ready.
type rate struct {
	limit, count int
	since        time.Time
}

func (r *rate) exceeded(now time.Time) bool {
	if now.Sub(r.since) >= time.Second {
		r.since, r.count = now, 0
	}
	r.count++
	return r.count > r.limit
}

// floods counts what a peer may send at no cost of its own. It is for one goroutine.
type floods struct{ idles, resets rate }

// idle counts a frame that carries nothing.
func (f *floods) idle() error {
	if f.idles.exceeded(time.Now()) {
		return violated(http2.ErrCodeEnhanceYourCalm, "more than %d frames a second that carry nothing", f.idles.limit)
	}
	return nil
}

// reset counts a stream that ends before its time.
func (f *floods) reset() error {
	if f.resets.exceeded(time.Now()) {
		return violated(http2.ErrCodeEnhanceYourCalm, "more than %d streams a second that end before their time", f.resets.limit)
	}
	return nil
}
