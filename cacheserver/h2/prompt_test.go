// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime/debug"
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

// byReader says whether the reader made the call that asks.
func byReader() bool { return bytes.Contains(debug.Stack(), []byte("h2.(*conn).read(")) }

// TestReaderMakesLoneCalls: a call that is alone and whole is made where the connection is read, and only if its handler never waits.
func TestReaderMakesLoneCalls(t *testing.T) { bothWays(t, readerMakesLoneCalls) }

func readerMakesLoneCalls(t *testing.T, cfg Config) {
	made := make(chan bool, 1) // by the reader
	cfg.Unary = func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		made <- byReader()
		return handler(ctx, request)
	}
	s := serve(t, cfg, map[string]grpc.StreamHandler{"Stream": func(_ any, stream grpc.ServerStream) error {
		made <- byReader()
		return stream.SendMsg(new(raw))
	}}).connect(t)
	s.echo(1, []byte("hello"))
	if got := s.echoed(1); !bytes.Equal(got, message([]byte("hello"))) {
		t.Errorf("Echo answers %q", got)
	}
	if got := <-made; got != cfg.Prompt {
		t.Errorf("the reader makes a unary call: %v", got)
	}
	s.call(3, "Stream", true)
	if got := s.echoed(3); !bytes.Equal(got, message(nil)) {
		t.Errorf("Stream answers %q", got)
	}
	if got := <-made; got != cfg.Prompt {
		t.Errorf("the reader makes a call of a stream: %v", got)
	}
	s.call(5, "Stream", false)
	if <-made {
		t.Error("the reader makes a call whose request is not whole")
	}
}

// TestConnectionIsReadOn: however long a call is that the reader makes, pings are answered, resets are heard, and other calls are made.
func TestConnectionIsReadOn(t *testing.T) {
	var of counter
	failed := make(chan error, 1)
	failing := func(handler grpc.StreamHandler) grpc.StreamHandler {
		return func(service any, stream grpc.ServerStream) error {
			err := handler(service, stream)
			failed <- err
			return err
		}
	}
	server := serve(t, Config{Prompt: true}, map[string]grpc.StreamHandler{
		"Long": failing(endless(&of)),
		"Many": failing(func(_ any, stream grpc.ServerStream) error {
			for {
				if err := stream.SendMsg(of.message([]byte("a little"))); err != nil {
					return err
				}
			}
		}),
		"Wait": failing(func(service any, stream grpc.ServerStream) error {
			if !byReader() {
				return errors.New("the reader does not make the call")
			}
			ReadOn(stream.Context())
			ReadOn(stream.Context()) // again is no harm
			return hold(service, stream)
		}),
	})
	s := server.connect(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	s.must(s.WriteWindowUpdate(0, maxWindow-defaultWindow))
	id, pings := uint32(1), byte(0)
	ping := func() { // and its answer, with all that comes before
		pings++
		s.must(s.WritePing(false, [8]byte{pings}))
		for await[*http2.PingFrame](s).Data[0] != pings {
		}
	}
	for _, method := range []string{"Wait", "Long", "Many", "Many", "Long", "Wait"} {
		s.call(id, method, true)
		ping()
		s.echo(id+2, []byte("meanwhile"))
		if got := s.echoed(id + 2); !bytes.Equal(got, message([]byte("meanwhile"))) {
			t.Errorf("beside %s Echo answers %q", method, got)
		}
		s.must(s.WriteRSTStream(id, http2.ErrCodeCancel))
		ping()
		if err := <-failed; !errors.Is(err, errReset) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended with %v, want to hear of its reset", method, err)
		}
		id += 4
		server.conn().runs(t, 0)
	}
}

// TestReadOnElsewhere: in a call that no reader makes there is nothing to be done.
func TestReadOnElsewhere(t *testing.T) {
	ReadOn(t.Context())
	s := serve(t, Config{}, map[string]grpc.StreamHandler{"Wait": func(_ any, stream grpc.ServerStream) error {
		ReadOn(stream.Context())
		return nil
	}}).connect(t)
	s.call(1, "Wait", true)
	if end := await[*http2.MetaHeadersFrame](s); !end.StreamEnded() {
		t.Error("the call did not end")
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

// TestWhoIsPrompt: a client that streams may keep a handler waiting, so no reader makes its call.
func TestWhoIsPrompt(t *testing.T) {
	s := New(Config{Prompt: true})
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "t", Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: echo}},
		Streams: []grpc.StreamDesc{{StreamName: "Get", ServerStreams: true}, {StreamName: "Exchange", ServerStreams: true, ClientStreams: true}},
	}, nil)
	for method, want := range map[string]bool{"Echo": true, "Get": true, "Exchange": false} {
		if got := s.isPrompt(&stream{request: request{path: "/t/" + method}}); got != want {
			t.Errorf("%s: %v, want %v", method, got, want)
		}
	}
}
