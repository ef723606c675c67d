// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"fmt"

	"golang.org/x/net/http2"
)

// controlFrames are queued frames that are not subject to flow control, in order. They have at most maxControl bytes; a peer that
// causes more has violated the protocol. conn.mu protects them.
type controlFrames struct {
	frames frameBuffer
	framer *http2.Framer // writes into frames
}

// frameBuffer collects control frames.
type frameBuffer []byte

// Write implements io.Writer.
func (b *frameBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// add encodes frames. An error must end the connection.
func (c *controlFrames) add(encode func(*http2.Framer) error) error {
	if err := encode(c.framer); err != nil {
		return fmt.Errorf("encode control frames: %w", err)
	}
	if len(c.frames) > maxControl {
		return violation{http2.ErrCodeEnhanceYourCalm, "the peer asks for answers and does not read them"}
	}
	return nil
}

// send queues control frames. It never waits for the peer.
func (w *writer) send(frames func(*http2.Framer) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sendLocked(frames)
}

func (w *writer) sendLocked(frames func(*http2.Framer) error) {
	if w.failed != nil {
		return
	}
	if err := w.control.add(frames); err != nil {
		w.fail(err)
		return
	}
	w.next()
}

// goAway writes the last frame of a connection that has failed. It must be called after stopLocked, when no other goroutine uses the
// control frames any more.
func (w *writer) goAway(newest uint32, why violation) error {
	if err := w.control.framer.WriteGoAway(newest, why.code, []byte(why.reason)); err != nil {
		return fmt.Errorf("encode GOAWAY: %w", err)
	}
	return w.write([][]byte{w.control.frames})
}
