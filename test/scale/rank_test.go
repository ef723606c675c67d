// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// rank is a rank's connection to a head. It takes less CPU time and memory than gRPC's, so that thousands fit into one process with the
// data nodes.
type rank struct {
	conn   net.Conn
	framer *http2.Framer
}

// window is the flow control window of ranks.
const window = 1 << 20

// ask opens a connection and sends a GetFlightInfo over it.
func ask(ctx context.Context, address string, d *flight.FlightDescriptor) (*rank, error) {
	body, err := proto.Marshal(d)
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	var block, out bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/arrow.flight.protocol.FlightService/GetFlightInfo"},
		{Name: ":authority", Value: address}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		if err := fields.WriteField(f); err != nil {
			return nil, err
		}
	}
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, conn)
	err = errors.Join(
		framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}),
		framer.WriteWindowUpdate(0, window),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}),
		framer.WriteData(1, true, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)))
	if err == nil {
		_, err = conn.Write(out.Bytes())
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	framer = http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.SetReuseFrames()
	return &rank{conn, framer}, nil
}

// answer reads the answer and returns its length.
func (r *rank) answer() (length int, err error) {
	for {
		frame, err := r.framer.ReadFrame()
		if err != nil {
			return length, err
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = r.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			err = r.framer.WritePing(true, f.Data)
		case *http2.DataFrame:
			length += len(f.Data())
		case *http2.RSTStreamFrame:
			return length, fmt.Errorf("the call was reset: %s", f.ErrCode)
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				return length, statusOf(f)
			}
		}
		if err != nil {
			return length, err
		}
	}
}

// idle does what the head wants of a connection without a call, until the head or the test ends it.
func (r *rank) idle(end <-chan struct{}) {
	go func() {
		<-end
		_ = r.conn.Close()
	}()
	for {
		frame, err := r.framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.PingFrame:
			_ = r.framer.WritePing(true, f.Data)
		case *http2.GoAwayFrame:
			_ = r.conn.Close()
		}
	}
}

// statusOf returns the error that a call ended with.
func statusOf(trailer *http2.MetaHeadersFrame) error {
	said := map[string]string{}
	for _, f := range trailer.Fields {
		said[f.Name] = f.Value
	}
	if said["grpc-status"] != "0" {
		return fmt.Errorf("status %s: %s", said["grpc-status"], said["grpc-message"])
	}
	return nil
}
