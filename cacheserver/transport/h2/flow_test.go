// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// longest is the maximum frame length of HTTP/2.
const longest = 1<<24 - 1

// endless sends messages of 1 MiB until it fails.
func endless(of *counter) grpc.StreamHandler {
	message := pattern(1 << 20)
	return func(_ any, stream grpc.ServerStream) error {
		for {
			if err := stream.SendMsg(of.message(message[:100], message[100:])); err != nil {
				return err
			}
		}
	}
}

// TestWindows reads messages with random windows and frame sizes: no more bytes than allowed may arrive, no frame may be too long,
// and the bytes must be those that were sent.
func TestWindows(t *testing.T) {
	random := seedtest.New(t)
	sizes := []int{0, 1, 20000, 1 << 20, 3}
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Five": func(_ any, stream grpc.ServerStream) error {
		for _, size := range sizes {
			var of counter
			if err := stream.SendMsg(of.message(slicesOf(pattern(size))...)); err != nil {
				return err
			}
		}
		return nil
	}})
	var want []byte
	for _, size := range sizes {
		want = binary.BigEndian.AppendUint32(append(want, 0), uint32(size))
		want = append(want, pattern(size)...)
	}
	for range 20 {
		frame, window := uint32(defaultFrame+random.IntN(1<<20)), uint32(random.IntN(1<<random.IntN(22)))
		s := server.connect(t, http2.Setting{ID: http2.SettingMaxFrameSize, Val: frame}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
		s.SetMaxReadFrameSize(longest)
		s.call(1, "Five", true)
		await[*http2.MetaHeadersFrame](s)
		var got []byte
		// What the server may send: on the stream, and on the connection.
		for windows := []int{int(window), defaultWindow}; len(got) < len(want); {
			for i, stream := range []uint32{1, 0} {
				if windows[i] == 0 || random.IntN(3) == 0 {
					more := 1 + random.IntN(200_000)
					s.must(s.WriteWindowUpdate(stream, uint32(more)))
					windows[i] += more
				}
			}
			data := await[*http2.DataFrame](s)
			got = append(got, data.Data()...)
			windows[0], windows[1] = windows[0]-int(data.Length), windows[1]-int(data.Length)
			if windows[0] < 0 || windows[1] < 0 || data.Length > frame {
				t.Fatalf("a frame of %d bytes, longest %d, leaves windows of %v", data.Length, frame, windows)
			}
		}
		if end := await[*http2.MetaHeadersFrame](s); !end.StreamEnded() || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes of %d, windows of %d, frames of %d; the stream has ended: %v", len(got), len(want), window, frame, end.StreamEnded())
		}
	}
}

// TestNegativeWindow reduces the window so that it becomes negative, RFC 9113 section 6.9.2.
func TestNegativeWindow(t *testing.T) {
	var of counter
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Endless": endless(&of)})
	s := server.connect(t)
	s.call(1, "Endless", true)
	for got := 0; got < defaultWindow; {
		got += int(await[*http2.DataFrame](s).Length)
	}
	s.must(s.WriteWindowUpdate(0, 1<<20))
	s.must(s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})) // the stream's is now -65535
	s.must(s.WriteWindowUpdate(1, defaultWindow+10))
	if got := await[*http2.DataFrame](s).Length; got != 10 {
		t.Errorf("%d bytes, want 10", got)
	}
}

// TestLongestFrames sets the maximum frame size to 16 MiB: a message must then be one frame.
func TestLongestFrames(t *testing.T) {
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Endless": endless(new(counter))})
	s := server.connect(t, http2.Setting{ID: http2.SettingMaxFrameSize, Val: longest}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	s.must(s.WriteWindowUpdate(0, maxWindow-defaultWindow))
	s.must(s.WritePing(false, [8]byte{})) // the answer shows that the settings are applied
	await[*http2.PingFrame](s)
	s.SetMaxReadFrameSize(longest)
	s.call(1, "Endless", true)
	for range 5 {
		if got := await[*http2.DataFrame](s).Length; got != 1<<20+leadSize {
			t.Errorf("a frame of %d bytes, want the message's %d and %d", got, 1<<20, leadSize)
		}
	}
}

// TestTurns opens endless streams on one connection: all must make progress, even if one has no window.
func TestTurns(t *testing.T) {
	const streams, rounds = 5, 20
	var of counter
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Endless": endless(&of)})
	s := server.connect(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	s.must(s.WriteWindowUpdate(0, maxWindow-defaultWindow))
	s.call(1, "Endless", true) // the test never sends WINDOW_UPDATE for stream 1
	for i := range streams {
		s.call(uint32(2*i+3), "Endless", true)
		s.must(s.WriteWindowUpdate(uint32(2*i+3), maxWindow))
	}
	got := map[uint32]int{}
	// Streams that began earlier are ahead; the amounts must not diverge after all have begun.
	for len(got) < streams {
		got[await[*http2.DataFrame](s).StreamID]++
	}
	clear(got)
	for total := 0; total < streams*rounds*quantum; {
		f := await[*http2.DataFrame](s)
		got[f.StreamID] += int(f.Length)
		total += int(f.Length)
	}
	least, most := got[3], got[3]
	for _, n := range got {
		least, most = min(least, n), max(most, n)
	}
	// On a busy machine a handler may request its turn late, and miss turns.
	if len(got) < streams || least < most/10 {
		t.Errorf("the streams got %v bytes: %d to %d", got, least, most)
	}
}

// TestBrokenConnections breaks connections in the middle of streams: every message must be released exactly once.
func TestBrokenConnections(t *testing.T) {
	var of counter
	server := serve(t, Config{}, map[string]grpc.StreamHandler{"Endless": endless(&of)})
	for i := range 20 {
		s := server.connect(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
		if i%2 == 0 { // otherwise the connection's window blocks them
			s.must(s.WriteWindowUpdate(0, maxWindow-defaultWindow))
		}
		for stream := range uint32(8) {
			s.call(2*stream+1, "Endless", true)
		}
		for range i {
			await[*http2.DataFrame](s)
			if i >= 3 { // no more can arrive
				break
			}
		}
		s.conn.Close()
	}
	deadline.Until(t, "every connection has gone", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return len(server.conns) == 0
	})
	if made, ok := of.balanced(); !ok || made == 0 {
		t.Errorf("%d messages made, %d released", made, of.released.Load())
	}
}

// TestReceiveWindow sends messages that are longer than the window: the client may send all of one as soon as there is memory for it, and no more
// than a window of the next one. With memory from the handler, none is made and none is reserved.
func TestReceiveWindow(t *testing.T) {
	const size = 1 << 20
	for name, memory := range map[string]raw{"the server's memory": nil, "the handler's memory": make(raw, size)} {
		p := &purse{}
		p.free.Store(connMemory + 8*size)
		got, next := make(chan bool), make(chan bool)
		server := serve(t, Config{Memory: p}, map[string]grpc.StreamHandler{"Take": func(_ any, stream grpc.ServerStream) error {
			for {
				message := memory
				if err := stream.RecvMsg(&message); err != nil {
					return nil //nolint:nilerr // the test has read what it wants
				}
				got <- bytes.Equal(message, pattern(size)) && (memory == nil || &message[0] == &memory[0])
				<-next
			}
		}})
		s := server.connect(t)
		s.call(1, "Take", false)
		window, updates := defaultWindow, 0
		for range 5 {
			whole := append(binary.BigEndian.AppendUint32([]byte{0}, size), pattern(size)...)
			for len(whole) > 0 {
				n := min(window, defaultFrame, len(whole))
				if n == 0 {
					if u := await[*http2.WindowUpdateFrame](s); u.StreamID == 1 {
						window += int(u.Increment)
						updates++
					}
					continue
				}
				s.must(s.WriteData(1, false, whole[:n]))
				whole, window = whole[n:], window-n
			}
			if !<-got {
				t.Errorf("%s: another message, or in other memory", name)
			}
			if free := p.free.Load(); memory != nil && free < 7*size {
				t.Errorf("%s: %d bytes are free while the handler has a message", name, free)
			}
			next <- true
		}
		if window > defaultWindow {
			t.Errorf("%s: a window of %d before a message", name, window)
		}
		// Of each message three in advance, and two for what it begins with: a piece that may be in the inbox already.
		if updates > 5*5 {
			t.Errorf("%s: %d updates for 5 messages", name, updates)
		}
	}
}
