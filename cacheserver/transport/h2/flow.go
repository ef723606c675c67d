// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import "golang.org/x/net/http2"

// sendWindow is how many bytes of DATA the peer takes, over a connection or over a stream. It never exceeds maxWindow, or the peer has
// broken the protocol; a stream's is negative where SETTINGS took back more than was left of it. conn.mu guards it.
type sendWindow int64

// grow adds what the peer said, which may be negative for a stream, and says whether the window is one still.
func (w *sendWindow) grow(n int64) (ok bool) {
	*w += sendWindow(n)
	return *w <= maxWindow
}

// receiveWindow is what the peer may send over all streams. left and owed together are connWindow between two frames: the bytes wait in
// their stream's own window, so the connection's is open again at once. It is for one goroutine.
type receiveWindow struct {
	left int64
	owed int64 // bytes received and not yet given back
}

// take counts n bytes of DATA that came, and says how many the peer is now to be given, in WINDOW_UPDATE; 0: none yet.
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

// peerSettings are what the peer has said in SETTINGS. conn.mu guards them.
type peerSettings struct {
	window int64  // of a new stream
	frame  int    // the longest
	table  uint32 // of header compression, at most maxTable
}

// apply takes one setting of the peer.
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

// takesWhole says whether the peer wants a message as one frame, see compose.
func (p *peerSettings) takesWhole() bool { return p.window == maxWindow }

// piece is how many of n bytes one turn may write: a quantum, or a frame where a message may be one, and not all but a
// last bit.
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
