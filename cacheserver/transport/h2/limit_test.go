// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// purse is a Memory with a limit.
type purse struct{ free atomic.Int64 }

func (p *purse) Reserve(n int64) error {
	if p.free.Add(-n) < 0 {
		p.free.Add(n)
		return errors.New("the purse is empty")
	}
	return nil
}

func (p *purse) Extend(n int64) error  { return p.Reserve(n) }
func (p *purse) Connect(n int64) error { return p.Reserve(n) }
func (p *purse) Free() int64           { return p.free.Load() }
func (p *purse) Release(n int64)       { p.free.Add(n) }

// gather receives messages until the end and returns the last one.
func gather(_ any, stream grpc.ServerStream) error {
	var last raw
	for {
		var m raw
		err := stream.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return stream.SendMsg(&last)
		}
		if err != nil {
			return err
		}
		last = m
	}
}

// TestMemoryIsReserved runs calls until their memory is used up: the call without memory must be rejected with a status, the others
// must continue, and all memory must be released.
func TestMemoryIsReserved(t *testing.T) {
	const size = 1 << 20
	p := &purse{}
	p.free.Store(size)
	r := serve(t, Config{Memory: p}, map[string]grpc.StreamHandler{"Gather": gather})
	conn := r.dial(t, nil)
	open := func() grpc.ClientStream {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/t/Gather", grpc.ForceCodecV2(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	first := open()
	message := raw(make([]byte, 100_000))
	if err := first.SendMsg(&message); err != nil {
		t.Fatal(err)
	}
	second, large := open(), raw(make([]byte, 900_000))
	if err := second.SendMsg(&large); err != nil {
		t.Fatal(err)
	}
	var got raw
	if err := second.RecvMsg(&got); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "the purse is empty") {
		t.Fatalf("a message beyond the memory: %v", err)
	}
	if err := first.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := first.RecvMsg(&got); err != nil || len(got) != len(message) {
		t.Fatalf("%d bytes, error %v, want the message back", len(got), err)
	}
	conn.Close()
	r.GracefulStop()
	if free := p.free.Load(); free != size {
		t.Errorf("%d of %d bytes came back", free, size)
	}
}

// TestLimitsByMethod checks the limits of the first message and of later ones.
func TestLimitsByMethod(t *testing.T) {
	limit := func(method string, first bool) int {
		if method == "/t/Gather" && !first {
			return 1000
		}
		return 10
	}
	r := serve(t, Config{Limit: limit}, map[string]grpc.StreamHandler{"Gather": gather})
	for name, tt := range map[string]struct {
		sizes []int
		want  codes.Code
	}{"short": {[]int{10, 1000}, codes.OK}, "first too long": {[]int{11}, codes.ResourceExhausted}, "second too long": {[]int{1, 1001}, codes.ResourceExhausted}} {
		stream, err := r.dial(t, nil).NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/t/Gather", grpc.ForceCodecV2(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range tt.sizes {
			m := raw(make([]byte, size))
			_ = stream.SendMsg(&m)
		}
		_ = stream.CloseSend()
		var got raw
		if err := stream.RecvMsg(&got); status.Code(err) != tt.want {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}

// TestLateRequests ends calls whose message does not arrive in time: for the first message, the time starts with the call, for later
// ones with their first byte.
func TestLateRequests(t *testing.T) {
	r := serve(t, Config{RequestTimeout: 100 * time.Millisecond}, map[string]grpc.StreamHandler{"Gather": gather})
	for name, sent := range map[string]string{
		"nothing": "", "half a lead": "\x00\x00", "half a message": "\x00\x00\x00\x00\x09half", "half the second one": "\x00\x00\x00\x00\x01a\x00",
	} {
		c := r.connect(t)
		c.call(1, "Gather", false)
		if sent != "" {
			c.must(c.WriteData(1, false, []byte(sent)))
		}
		fields := await[*http2.MetaHeadersFrame](c).Fields
		if !slices.ContainsFunc(fields, func(f hpack.HeaderField) bool { return f.Name == "grpc-status" && f.Value == "4" }) { // DEADLINE_EXCEEDED
			t.Errorf("%s: %v, want grpc-status 4", name, fields)
		}
	}
}

// TestUnreadConnection checks that a connection whose client reads nothing is closed, however large its windows are.
func TestUnreadConnection(t *testing.T) {
	ended := make(chan error, 1)
	r := serve(t, Config{SendTimeout: 200 * time.Millisecond}, map[string]grpc.StreamHandler{"Flood": func(_ any, stream grpc.ServerStream) error {
		for message := raw(make([]byte, 1<<20)); ; {
			if err := stream.SendMsg(&message); err != nil {
				ended <- err
				return err
			}
		}
	}})
	c := r.connect(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	c.must(c.WriteWindowUpdate(0, maxWindow-defaultWindow))
	c.call(1, "Flood", true)
	t.Logf("the handler is told %v", deadline.Receive(t, ended, "the connection to end"))
	deadline.Until(t, "the connection is gone", func() bool { return r.conn() == nil })
}
