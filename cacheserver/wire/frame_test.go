// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// TestFrameIsFlightData decodes hand-made frames with the generated protobuf code.
func TestFrameIsFlightData(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	tests := []struct {
		name string
		body [][]byte
	}{
		{"no body", nil},
		{"one slice", [][]byte{big}},
		{"small slices are copied", [][]byte{[]byte("ab"), []byte("cd")}},
		{"mixed", [][]byte{big, []byte("x"), big[:2048:2048], {}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := bytes.Join(tt.body, nil)
			released := 0
			f := NewFrame([]byte("header"), []byte("more"), tt.body, len(want), func() { released++ })
			data, err := NewCodec().Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			var got flight.FlightData
			if err := proto.Unmarshal(data.Materialize(), &got); err != nil {
				t.Fatal(err)
			}
			if header := string(bytes.TrimRight(got.DataHeader, "\x00")); header != "header" || string(got.AppMetadata) != "more" {
				t.Errorf("header %q, metadata %q", header, got.AppMetadata)
			}
			if data.Len() != f.Size() || !bytes.Equal(got.DataBody, want) {
				t.Errorf("%d bytes of %d, body of %d bytes, want %d", data.Len(), f.Size(), len(got.DataBody), len(want))
			}
			data.Free()
			if released != 1 {
				t.Errorf("released %d times", released)
			}
		})
	}
}

// TestFrameBodyIsAligned covers the lengths around which the header's own length takes a byte more.
func TestFrameBodyIsAligned(t *testing.T) {
	for _, metadata := range [][]byte{nil, []byte(`{"busy_us":7}`)} {
		for length := range 300 {
			header := bytes.Repeat([]byte{1}, 8*length)
			f := NewFrame(header, metadata, [][]byte{make([]byte, 64)}, 64, nil)
			if at := f.Size() - 64; at%bodyAlign != 0 || at > len(header)+len(metadata)+32 {
				t.Errorf("a header of %d bytes: the body starts at %d", len(header), at)
			}
		}
	}
}

// silentStream is a stream that fails to send, before or after encoding, or keeps what it is given.
type silentStream struct {
	grpc.ServerStream
	ctx    context.Context
	encode bool
	err    error
	kept   mem.BufferSlice
}

func (s *silentStream) Context() context.Context { return s.ctx }

func (s *silentStream) SendMsg(m any) error {
	if s.encode {
		data, err := NewCodec().Marshal(m)
		if err != nil {
			return err
		}
		if s.kept = data; s.err != nil {
			data.Free()
		}
	}
	return s.err
}

func TestSendReleasesOnce(t *testing.T) {
	failed := errors.New("failed")
	tests := []struct {
		name   string
		encode bool
		err    error
		after  func(end func(), kept mem.BufferSlice)
	}{
		{"fails before encoding", false, failed, func(func(), mem.BufferSlice) {}},
		{"fails after encoding", true, failed, func(func(), mem.BufferSlice) {}},
		{"is written", true, nil, func(_ func(), kept mem.BufferSlice) { kept.Free() }},
		{"is dropped when the connection breaks", true, nil, func(end func(), _ mem.BufferSlice) { end() }},
		{"is written, then the connection ends", true, nil, func(end func(), kept mem.BufferSlice) { kept.Free(); end() }},
		{"the connection ends, then it is freed", true, nil, func(end func(), kept mem.BufferSlice) { end(); kept.Free() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := Connections{}.TagConn(t.Context(), nil)
			released := 0
			f := NewFrame(nil, nil, [][]byte{make([]byte, 4096), make([]byte, 8192)}, 12288, func() { released++ })
			stream := &silentStream{ctx: ctx, encode: tt.encode, err: tt.err}
			if err := Send(stream, f); !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			tt.after(func() { Connections{}.HandleConn(ctx, &stats.ConnEnd{}) }, stream.kept)
			if released != 1 {
				t.Errorf("released %d times", released)
			}
		})
	}
}

func TestSendOnAnEndedConnection(t *testing.T) {
	ctx := Connections{}.TagConn(t.Context(), nil)
	Connections{}.HandleConn(ctx, &stats.ConnEnd{})
	released := 0
	err := Send(&silentStream{ctx: ctx, encode: true}, NewFrame(nil, nil, nil, 0, func() { released++ }))
	if status.Code(err) != codes.Unavailable || released != 1 {
		t.Errorf("error %v, released %d times", err, released)
	}
}

func TestCodecPassesOthers(t *testing.T) {
	c := NewCodec()
	data, err := c.Marshal(&flight.Ticket{Ticket: []byte("t")})
	if err != nil {
		t.Fatal(err)
	}
	var ticket flight.Ticket
	if err := c.Unmarshal(data, &ticket); err != nil || string(ticket.Ticket) != "t" {
		t.Errorf("ticket %q, error %v", ticket.Ticket, err)
	}
	raw := Raw("bytes")
	if data, err = c.Marshal(&raw); err != nil {
		t.Fatal(err)
	}
	var back Raw
	if err := c.Unmarshal(data, &back); err != nil || string(back) != "bytes" {
		t.Errorf("raw %q, error %v", back, err)
	}
	if _, err := c.Marshal(42); err == nil {
		t.Error("an int was encoded")
	}
	if err := c.Unmarshal(data, &ticket); err == nil {
		t.Error("nonsense was decoded as a ticket")
	}
}
