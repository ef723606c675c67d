// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

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

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// silentStream is a stream whose sends fail, before or after encoding, or that keeps what it is given.
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
			f := protocol.NewFrame(nil, nil, [][]byte{make([]byte, 4096), make([]byte, 8192)}, 12288, func() { released++ })
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

// TestSendKeepsTheBytes checks that grpc-go gets the exact bytes of the frame, whether it takes the slices of the body or copies
// them.
func TestSendKeepsTheBytes(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	for name, body := range map[string][][]byte{
		"no body": nil, "one slice": {big}, "small slices": {[]byte("ab"), []byte("cd")}, "mixed": {big, []byte("x"), big[:2048:2048], {}},
	} {
		t.Run(name, func(t *testing.T) {
			released := 0
			f := protocol.NewFrame([]byte("header"), []byte("more"), body, len(bytes.Join(body, nil)), func() { released++ })
			stream := &silentStream{ctx: Connections{}.TagConn(t.Context(), nil), encode: true}
			if err := Send(stream, f); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(stream.kept.Materialize(), bytes.Join(f.AppendSlices(nil), nil)) {
				t.Error("the bytes differ from the frame's")
			}
			stream.kept.Free()
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
	err := Send(&silentStream{ctx: ctx, encode: true}, protocol.NewFrame(nil, nil, nil, 0, func() { released++ }))
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
	raw := protocol.Raw("bytes")
	if data, err = c.Marshal(&raw); err != nil {
		t.Fatal(err)
	}
	var back protocol.Raw
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

// TestCodecAliases checks that raw bytes are taken over if they are garbage collected, and copied if a pool will use them again.
func TestCodecAliases(t *testing.T) {
	pooled := make([]byte, 1<<16)
	for name, tt := range map[string]struct {
		buffer mem.Buffer
		shares bool
	}{
		"garbage collected": {mem.SliceBuffer(pooled), true},
		"pooled":            {mem.NewBuffer(&pooled, mem.DefaultBufferPool()), false},
	} {
		var back protocol.Raw
		if err := NewCodec().Unmarshal(mem.BufferSlice{tt.buffer}, &back); err != nil || len(back) != len(pooled) {
			t.Fatalf("%s: %d bytes, error %v", name, len(back), err)
		}
		if shares := &back[0] == &pooled[0]; shares != tt.shares {
			t.Errorf("%s: shares its memory: %v, want %v", name, shares, tt.shares)
		}
	}
}
