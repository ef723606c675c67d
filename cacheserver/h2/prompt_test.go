// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// message is b as gRPC sends it.
func message(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// echoed reads a stream's answer to Echo up to its end.
func (s *script) echoed(stream uint32) []byte {
	s.t.Helper()
	var got []byte
	for {
		frame, err := s.ReadFrame()
		s.must(err)
		if frame.Header().StreamID != stream {
			continue
		}
		switch f := frame.(type) {
		case *http2.DataFrame:
			got = append(got, f.Data()...)
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				return got
			}
		}
	}
}

// gathered is what say says, in place of sending it.
func (s *script) gathered(say func()) []byte {
	var said bytes.Buffer
	straight := s.Framer
	s.Framer = http2.NewFramer(&said, nil)
	say()
	s.Framer = straight
	return said.Bytes()
}

// echo asks for b back, in one packet.
func (s *script) echo(stream uint32, b []byte) {
	s.t.Helper()
	_, err := s.conn.Write(s.gathered(func() {
		s.call(stream, "Echo", false)
		s.must(s.WriteData(stream, true, message(b)))
	}))
	s.must(err)
}

// TestReaderMakesLoneCalls: a call that is alone and whole is made where the connection is read, and only if its handler never waits.
func TestReaderMakesLoneCalls(t *testing.T) {
	for _, prompt := range []bool{true, false} {
		var byReader atomic.Bool
		look := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			byReader.Store(bytes.Contains(debug.Stack(), []byte("h2.(*conn).read(")))
			return handler(ctx, request)
		}
		s := serve(t, Config{Prompt: prompt, Unary: look}, nil).connect(t)
		s.echo(1, []byte("hello"))
		if got := s.echoed(1); !bytes.Equal(got, message([]byte("hello"))) {
			t.Errorf("Prompt %v: Echo answers %q", prompt, got)
		}
		if byReader.Load() != prompt {
			t.Errorf("Prompt %v: the reader makes the call: %v", prompt, byReader.Load())
		}
	}
}

// TestPromptAnswerWaitsForWindow: an answer that the peer's windows hold back does not keep its connection from being read.
func TestPromptAnswerWaitsForWindow(t *testing.T) {
	s := serve(t, Config{Prompt: true}, nil).connect(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	want := message(pattern(1000))
	s.echo(1, pattern(1000))
	if got := await[*http2.DataFrame](s).Length; got != 10 {
		t.Errorf("%d bytes of DATA came, the window is 10", got)
	}
	s.must(s.WritePing(false, [8]byte{1}))
	await[*http2.PingFrame](s)
	s.must(s.WriteWindowUpdate(1, 2000))
	if got := s.echoed(1); !bytes.Equal(got, want[10:]) {
		t.Errorf("%d bytes more came, want the message's last %d", len(got), len(want)-10)
	}
}

// TestPromptCallsInPieces sends many requests at once, cut anywhere: all are answered.
func TestPromptCallsInPieces(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := serve(t, Config{Prompt: true}, nil).connect(t)
	want := map[uint32][]byte{}
	said := s.gathered(func() {
		for id := uint32(1); len(want) < 200; id += 2 {
			want[id] = message(pattern(random.IntN(1 << random.IntN(9)))) // all answers together are within the first window
			s.call(id, "Echo", false)
			cut := random.IntN(len(want[id]))
			s.must(s.WriteData(id, false, want[id][:cut]))
			s.must(s.WriteData(id, true, want[id][cut:]))
		}
	})
	go func() {
		for len(said) > 0 {
			n := min(len(said), 1+random.IntN(500))
			if _, err := s.conn.Write(said[:n]); err != nil {
				t.Error(err)
				return
			}
			said = said[n:]
		}
	}()
	got := map[uint32][]byte{}
	for ended := 0; ended < len(want); {
		frame, err := s.ReadFrame()
		s.must(err)
		switch f := frame.(type) {
		case *http2.DataFrame:
			got[f.StreamID] = append(got[f.StreamID], f.Data()...)
		case *http2.MetaHeadersFrame:
			if !f.StreamEnded() {
				continue
			}
			if ended++; !bytes.Equal(got[f.StreamID], want[f.StreamID]) {
				t.Errorf("stream %d: %d bytes came, want %d", f.StreamID, len(got[f.StreamID]), len(want[f.StreamID]))
			}
		}
	}
}
