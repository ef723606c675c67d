// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// TestViolations violates the protocol in many ways: the connection or stream must end with the right error code, and the server must
// continue. h2spec (h2spec_test.go) tries many more.
func TestViolations(t *testing.T) {
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Hold": hold})
	tests := []struct {
		name   string
		stream bool // the stream ends, not the connection
		code   http2.ErrCode
		do     func(*script)
	}{
		{"a window update of a stream never opened", false, http2.ErrCodeProtocol, func(s *script) { s.must(s.WriteWindowUpdate(7, 1)) }},
		{"data for a stream never opened", false, http2.ErrCodeProtocol, func(s *script) { s.must(s.WriteData(7, true, []byte("x"))) }},
		{"an even stream", false, http2.ErrCodeProtocol, func(s *script) { s.call(2, "Hold", true) }},
		{"a stream below the last", false, http2.ErrCodeStreamClosed, func(s *script) { s.call(5, "Hold", false); s.call(3, "Hold", false) }},
		{"the connection's window too large", false, http2.ErrCodeFlowControl, func(s *script) { s.must(s.WriteWindowUpdate(0, maxWindow)) }},
		{"a stream's window too large", true, http2.ErrCodeFlowControl, func(s *script) { s.call(1, "Hold", false); s.must(s.WriteWindowUpdate(1, maxWindow)) }},
		{"settings that make it too large", false, http2.ErrCodeFlowControl, func(s *script) {
			s.call(1, "Hold", false)
			s.must(s.WriteWindowUpdate(1, 1<<20))
			s.must(s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow}))
		}},
		{"a window update of nothing", true, http2.ErrCodeProtocol, func(s *script) { s.call(1, "Hold", false); s.must(s.WriteWindowUpdate(1, 0)) }},
		{"a frame too long", false, http2.ErrCodeFrameSize, func(s *script) { s.call(1, "Hold", false); s.must(s.WriteData(1, false, make([]byte, defaultFrame+1))) }},
		{"more than the stream's window", true, http2.ErrCodeFlowControl, func(s *script) {
			s.call(1, "Hold", false)
			for range defaultWindow/defaultFrame + 2 {
				s.must(s.WriteData(1, false, make([]byte, defaultFrame)))
			}
		}},
		{"data after the end", true, http2.ErrCodeStreamClosed, func(s *script) { s.call(1, "Hold", true); s.must(s.WriteData(1, true, nil)) }},
		{"a second header block that ends nothing", true, http2.ErrCodeProtocol, func(s *script) { s.call(1, "Hold", false); s.call(1, "Hold", false) }},
		{"no path", true, http2.ErrCodeProtocol, func(s *script) {
			s.must(s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.fields(":method", "POST", ":scheme", "http"), EndHeaders: true}))
		}},
		{"a field of HTTP/1.1", true, http2.ErrCodeProtocol, func(s *script) { s.call(1, "Hold", false, "connection", "close") }},
		{"less data than content-length", true, http2.ErrCodeProtocol, func(s *script) {
			s.call(1, "Hold", false, "content-length", "7")
			s.must(s.WriteData(1, true, []byte("six...")))
		}},
		{"a stream that depends on itself", true, http2.ErrCodeProtocol, func(s *script) { s.must(s.WritePriority(1, http2.PriorityParam{StreamDep: 1})) }},
		{"a push", false, http2.ErrCodeProtocol, func(s *script) {
			s.must(s.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: s.fields("a", "b"), EndHeaders: true}))
		}},
		{"a header block that is none", false, http2.ErrCodeCompression, func(s *script) {
			s.must(s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true}))
		}},
		{"header fields without end", false, http2.ErrCodeProtocol, func(s *script) {
			s.must(s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.fields("a", "b")}))
			for range 64 {
				if s.WriteContinuation(1, false, make([]byte, defaultFrame)) != nil {
					return // the server has closed the connection
				}
			}
		}},
		{"empty continuations without end", false, http2.ErrCodeEnhanceYourCalm, func(s *script) {
			s.must(s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.fields("a", "b")}))
			for range maxRead {
				if s.WriteContinuation(1, false, nil) != nil {
					return
				}
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := server.connect(t)
			tt.do(s)
			if !tt.stream {
				if got := s.ends(); got != tt.code {
					t.Errorf("the connection ended with %v, want %v", got, tt.code)
				}
				return
			}
			if got := await[*http2.RSTStreamFrame](s).ErrCode; got != tt.code {
				t.Errorf("the stream ended with %v, want %v", got, tt.code)
			}
			s.must(s.WritePing(false, [8]byte{1})) // the connection still works
			await[*http2.PingFrame](s)
		})
	}
}

// TestFloods repeats far too often what is allowed once.
func TestFloods(t *testing.T) {
	const limit = 50 // low, so that the slowest machine exceeds it within a second
	server := serveAfter(t, Config{}, map[string]grpc.StreamHandler{"Hold": hold}, func(s *Server) { s.idlesASecond, s.resetsASecond = limit, limit })
	tests := []struct {
		name string
		do   func(s *script, i int) error
	}{
		{"rapid reset", func(s *script, i int) error {
			s.call(uint32(2*i+1), "Hold", true)
			return s.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
		}},
		{"priorities", func(s *script, _ int) error { return s.WritePriority(1, http2.PriorityParam{StreamDep: 3}) }},
		{"empty data", func(s *script, i int) error {
			if i == 0 {
				s.call(1, "Hold", false)
			}
			return s.WriteData(1, false, nil)
		}},
		{"unknown frames", func(s *script, _ int) error { return s.WriteRawFrame(0x99, 0, 0, nil) }},
		{"pings", func(s *script, _ int) error { return s.WritePing(false, [8]byte{}) }},
		{"settings", func(s *script, _ int) error { return s.WriteSettings() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := server.connect(t)
			// Sent in batches, so that it is a flood even on a slow machine.
			var flood frameBuffer
			framer := http2.NewFramer(&flood, nil)
			framer.AllowIllegalWrites = true
			wire := s.Framer
			s.Framer = framer
			for i := range 20 * limit {
				if err := tt.do(s, i); err != nil {
					t.Fatal(err)
				}
			}
			s.Framer = wire
			go func() { _, _ = s.conn.Write(flood) }() // fails when the server has closed the connection
			if got := s.ends(); got != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("the connection ended with %v, want %v", got, http2.ErrCodeEnhanceYourCalm)
			}
		})
	}
}

// TestAnswersNobodyReads has a client cause answers without reading them: the queue of answers must be bounded.
func TestAnswersNobodyReads(t *testing.T) {
	server := serve(t, Config{}, nil)
	s := server.connect(t)
	pings := make([]byte, 0, 17<<10)
	for range 1 << 10 {
		pings = append(pings, 0, 0, 8, byte(http2.FramePing), 0, 0, 0, 0, 0)
		pings = binary.BigEndian.AppendUint64(pings, 7)
	}
	err := error(nil)
	for err == nil { // until the server closes the connection
		_, err = s.conn.Write(pings)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// lockedBuffer is a buffer that several goroutines may write to.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) lines() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Count(b.text.Bytes(), []byte("a client broke the protocol"))
}

// TestViolationsAreLoggedOnceASecond checks that clients can't fill the log with what they do wrong.
func TestViolationsAreLoggedOnceASecond(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	server := serveAfter(t, Config{}, nil, func(s *Server) { s.cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	begun := time.Now()
	for range 50 {
		conn := server.plain(t)
		if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, conn) // until the server has closed it
		_ = conn.Close()
	}
	if got, most := log.lines(), int(time.Since(begun).Seconds())+1; got < 1 || got > most {
		t.Errorf("%d lines, want 1 to %d", got, most)
	}
}
