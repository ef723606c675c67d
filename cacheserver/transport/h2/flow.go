// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import "golang.org/x/net/http2"

// sendWindow is how many bytes of DATA the peer accepts, on a connection or a stream. It is at most maxWindow, otherwise the peer has
// violated the protocol; a stream's is negative if SETTINGS reduced it by more than was left. conn.mu protects it.
type sendWindow int64

// grow adds n, which may be negative for a stream, and reports whether the window is still valid.
func (w *sendWindow) grow(n int64) (ok bool) {
	*w += sendWindow(n)
	return *w <= maxWindow
}

// receiveWindow is how much the peer may send over all streams. Between two frames, left and owed add up to connWindow: bytes that
// are not read yet only count against their stream's own window, so the connection's window is increased at once. It is not safe for
// concurrent use.
type receiveWindow struct {
	left int64
	owed int64 // bytes received and not yet returned
}

// take counts n received bytes of DATA, and returns the increment to send in WINDOW_UPDATE; 0: none yet.
func (w *receiveWindow) take(n int64) (update uint32, err error) {
	if w.left -= n; w.left < 0 {
		return 0, violated(http2.ErrCodeFlowControl, "%d bytes more than the connection's window", -w.left)
	}
	if w.owed += n; w.owed >= connWindow/2 {
		update = uint32(w.owed)
		w.left, w.owed = w.left+w.owed, 0
	}
	return update, nil
}

// peerSettings are the peer's SETTINGS. conn.mu protects them.
type peerSettings struct {
	window int64  // initial value for a new stream
	frame  int    // the longest
	table  uint32 // size of the dynamic table of header compression, at most maxTable
}

// apply applies one setting of the peer.
func (p *peerSettings) apply(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		p.table = min(s.Val, maxTable)
	case http2.SettingMaxFrameSize:
		p.frame = int(s.Val)
	case http2.SettingInitialWindowSize:
		p.window = int64(s.Val)
	}
	return nil
}

// takesWhole reports whether the peer wants a message as one frame, see compose.
func (p *peerSettings) takesWhole() bool { return p.window == maxWindow }

// piece is how many of n bytes one turn may write: a quantum, or a frame if messages may be sent as one, and it avoids leaving a
// small rest.
func (p *peerSettings) piece(n int) int {
	most := quantum
	if p.takesWhole() {
		most = max(most, p.frame)
	}
	if n > most+defaultFrame {
		return most
	}
	return n
}
