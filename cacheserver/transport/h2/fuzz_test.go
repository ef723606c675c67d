// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// FuzzConnection sends arbitrary bytes: the server must not panic, and must release the connection, calls and messages when the
// client has gone.
func FuzzConnection(f *testing.F) {
	var block, said bytes.Buffer
	encoder, framer := hpack.NewEncoder(&block), http2.NewFramer(&said, nil)
	header := func(path string) {
		for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "a"}, {"content-type", "application/grpc"}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
		}
	}
	header("/t/Echo")
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = framer.WriteData(1, true, []byte{0, 0, 0, 0, 3, '9', '9', '9'})
	f.Add(bytes.Clone(said.Bytes()))
	block.Reset()
	said.Reset()
	encoder = hpack.NewEncoder(&block)
	header("/t/Send")
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
	f.Add(bytes.Clone(said.Bytes()))
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = framer.WriteData(1, false, []byte{0, 0, 0, 0, 3, '9', '9', '9'})
	_ = framer.WriteWindowUpdate(1, 1000)
	_ = framer.WritePing(false, [8]byte{})
	f.Add(bytes.Clone(said.Bytes()))
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block.Bytes()[:5]})
	_ = framer.WriteContinuation(3, true, block.Bytes()[5:])
	_ = framer.WriteRSTStream(1, http2.ErrCodeCancel)
	_ = framer.WritePriority(3, http2.PriorityParam{StreamDep: 1})
	_ = framer.WriteGoAway(0, http2.ErrCodeNo, nil)
	f.Add(bytes.Clone(said.Bytes()))

	f.Fuzz(func(t *testing.T, data []byte) {
		server := New(Config{Codec: rawCodec{}, Log: slog.New(slog.DiscardHandler)})
		server.RegisterService(&grpc.ServiceDesc{
			ServiceName: "t", Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: echo}}, Streams: []grpc.StreamDesc{{StreamName: "Send", Handler: send}},
		}, nil)
		ours, theirs := net.Pipe()
		served, done := make(chan struct{}), make(chan struct{})
		go func() { server.serve(server.accept(theirs)); close(served) }()
		go func() { _, _ = io.Copy(io.Discard, ours) }() // ends when the pipe is closed
		go func() {
			defer close(done)
			_, _ = ours.Write(append([]byte(http2.ClientPreface), data...)) // fails if the server closes the connection first
			_ = ours.Close()
			<-served
			server.GracefulStop()
		}()
		deadline.Receive(t, done, "the connection to end")
	})
}
