// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"time"

	"golang.org/x/net/http2"
)

const (
	alpn = "h2" // ALPN protocol name of HTTP/2, RFC 9113 section 3.2

	// maxWarnings is how many lines of the log in a second may be about clients.
	maxWarnings = 1
	// HandshakeTime is the time limit for the handshakes of TLS and HTTP/2 on a new connection.
	HandshakeTime = 10 * time.Second
	// minPause and maxPause bound the pause after a connection could not be accepted.
	minPause, maxPause = 5 * time.Millisecond, time.Second
	// silence is the time without a frame from the client after which a PING is sent.
	silence = time.Minute
	// lastWrite is the time limit for a connection's last frames, and for its peer to close its side.
	lastWrite = time.Second
	// drainWait is how long a client may still open streams after the first GOAWAY: less if it answers the PING earlier.
	drainWait = time.Second
	// shedAfter is how long ago a connection's last call must have returned for it to be drained when another needs its memory.
	shedAfter = time.Second

	// maxStreams is the maximum number of running calls per connection. A call that its client reset counts until its handler has
	// returned, so that resets gain nothing (CVE-2023-44487).
	maxStreams = 512
	// slowest is the minimum rate, in bytes per second, at which a long message must arrive; see Config.RequestTimeout.
	slowest = 64 << 10
	// maxHeaderList bounds a request's header fields, counted as in RFC 9113 section 6.5.2.
	maxHeaderList = 64 << 10
	// maxRead bounds a frame together with its CONTINUATION frames, so that an endless series of empty ones is rejected too.
	maxRead = 4 * maxHeaderList
	// maxTable bounds the dynamic table of header compression in either direction.
	maxTable = 4096
	// maxControl bounds the control frames that are queued: a peer that causes answers must read them.
	maxControl = 64 << 10

	// quantum is the maximum number of bytes that a stream writes in one turn, see peerSettings.piece.
	quantum = 512 << 10

	// maxUnsent is TCP_NOTSENT_LOWAT: the maximum number of bytes in a connection's send buffer that can't be sent yet.
	maxUnsent = 1 << 20
	// If the first round trip takes less than nearRTT, SO_SNDBUF is set to nearBuffer, which Linux doubles: at that distance it is
	// sufficient for 5 GB/s and more. Otherwise the kernel adjusts the buffer to bandwidth and delay.
	nearRTT    = 100 * time.Microsecond
	nearBuffer = 384 << 10

	// defaultWindow and defaultFrame are the values before a peer sends settings, RFC 9113 section 6.5.2.
	defaultWindow, defaultFrame = 65535, 16384
	maxWindow                   = 1<<31 - 1
	// connWindow is the connection's receive window; each stream's is the default.
	connWindow = 1 << 20
)

// Limits per second on frames that carry no data (pings, settings, priorities, empty data, unknown ones) and on calls that a client
// resets. Peers that measure bandwidth send a ping per round trip, which is a few thousand per second on one machine.
const (
	maxIdle   = 20000
	maxResets = 1000
)

// rate counts events and reports when there are too many in one second. Set limit; the other fields start as zero.
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

// floods limits frames that cost their sender nothing. It is not safe for concurrent use.
type floods struct{ idles, resets rate }

// idle counts a frame without data against its rate limit.
func (f *floods) idle() error {
	if f.idles.exceeded(time.Now()) {
		return violated(http2.ErrCodeEnhanceYourCalm, "more than %d frames a second that carry nothing", f.idles.limit)
	}
	return nil
}

// reset counts a stream that is reset by the client.
func (f *floods) reset() error {
	if f.resets.exceeded(time.Now()) {
		return violated(http2.ErrCodeEnhanceYourCalm, "more than %d streams a second that end before their time", f.resets.limit)
	}
	return nil
}
