// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"fmt"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// flat is a Message with one slice, which is not released.
type flat []byte

func (m *flat) Size() int                         { return len(*m) }
func (m *flat) AppendSlices(to [][]byte) [][]byte { return append(to, *m) }
func (m *flat) Release()                          {}

// BenchmarkSend sends messages to a client that reads them at once, on one stream and on several that take turns.
func BenchmarkSend(b *testing.B) {
	for _, c := range []struct{ streams, size int }{{1, 4 << 10}, {1, 1 << 20}, {16, 4 << 10}, {16, 64 << 10}} {
		b.Run(fmt.Sprintf("%d streams of %d KiB", c.streams, c.size>>10), func(b *testing.B) {
			message := flat(make([]byte, c.size))
			each := b.N/c.streams + 1
			flood := func(_ any, stream grpc.ServerStream) error {
				for range each {
					if err := stream.SendMsg(&message); err != nil {
						return err
					}
				}
				return nil
			}
			server := serve(b, Config{}, map[string]grpc.StreamHandler{"Flood": flood})
			client := server.connectWide(b)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			b.ResetTimer()
			for i := range c.streams {
				client.call(uint32(2*i+1), "Flood", true)
			}
			client.drain(c.streams)
		})
	}
}

// BenchmarkCall makes sequential calls with a short request and a short response.
func BenchmarkCall(b *testing.B) {
	server := serve(b, Config{}, nil)
	client := server.connectWide(b)
	request := append([]byte{0, 0, 0, 0, 64}, make([]byte, 64)...)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		client.call(uint32(2*i+1), "Echo", false)
		client.must(client.WriteData(uint32(2*i+1), true, request))
		client.drain(1)
	}
}

// connectWide opens a connection with maximum windows and long frames.
func (r *running) connectWide(b *testing.B) *script {
	b.Helper()
	s := r.connect(b,
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow},
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20})
	s.must(s.WriteWindowUpdate(0, maxWindow-defaultWindow))
	return s
}

// drain reads until the given number of streams have ended, returning window for what it reads.
func (s *script) drain(streams int) {
	s.t.Helper()
	s.SetReuseFrames()
	owed := map[uint32]uint32{}
	for streams > 0 {
		frame, err := s.ReadFrame()
		s.must(err)
		h := frame.Header()
		if h.Type == http2.FrameData {
			for _, id := range [...]uint32{0, h.StreamID} {
				if owed[id] += h.Length; owed[id] > 1<<20 {
					s.must(s.WriteWindowUpdate(id, owed[id]))
					owed[id] = 0
				}
			}
		}
		if h.Flags.Has(http2.FlagHeadersEndStream) && (h.Type == http2.FrameHeaders || h.Type == http2.FrameData) {
			streams--
		}
	}
}
