// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// rawClient is an HTTP/2 client that begins requests and does not finish them. It respects the server's flow-control windows.
type rawClient struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer

	mu      sync.Mutex // also guards writes
	windows map[uint32]int
	window  int // the connection's
	ended   map[uint32]bool
	gone    bool
	changed *sync.Cond
}

// dialRaw makes the connection, which is closed at the end of the test.
func dialRaw(t *testing.T, address string) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &rawClient{t: t, conn: conn, framer: http2.NewFramer(conn, conn), windows: map[uint32]int{}, window: 65535, ended: map[uint32]bool{}}
	c.changed = sync.NewCond(&c.mu)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	go c.read()
	return c
}

// read reads the server's frames until the connection ends.
func (c *rawClient) read() {
	for {
		frame, err := c.framer.ReadFrame()
		c.mu.Lock()
		if err != nil {
			c.gone = true
			c.changed.Broadcast()
			c.mu.Unlock()
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			_ = c.framer.WritePing(true, f.Data)
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				c.window += int(f.Increment)
			} else {
				c.windows[f.StreamID] += int(f.Increment)
			}
		case *http2.RSTStreamFrame:
			c.ended[f.StreamID] = true
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				c.ended[f.StreamID] = true
			}
		}
		c.changed.Broadcast()
		c.mu.Unlock()
	}
}

// begin opens a call.
func (c *rawClient) begin(id uint32, method string) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/arrow.flight.protocol.FlightService/" + method}, {":authority", "a"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.windows[id] += 65535
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
}

// send sends data of a call as far as the windows allow, until the call or the connection ends or there is no progress for a while.
func (c *rawClient) send(id uint32, data []byte) (sent int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stalled := false
	for sent < len(data) && !c.gone && !c.ended[id] && !stalled {
		n := min(len(data)-sent, c.windows[id], c.window, 16384)
		if n <= 0 {
			timer := time.AfterFunc(time.Second, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				stalled = true
				c.changed.Broadcast()
			})
			c.changed.Wait()
			timer.Stop()
			continue
		}
		if c.framer.WriteData(id, false, data[sent:sent+n]) != nil {
			return sent
		}
		sent, c.windows[id], c.window = sent+n, c.windows[id]-n, c.window-n
	}
	return sent
}

// endedCalls is the number of calls that the server has ended.
func (c *rawClient) endedCalls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ended)
}
