// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// TestInboxKeepsOrder puts pieces of random lengths, within a window, while another goroutine takes others.
func TestInboxKeepsOrder(t *testing.T) {
	seed := seedtest.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	p := &purse{}
	p.free.Store(copies * defaultWindow)
	b := newInbox(p)
	sent := make([]byte, 4<<20)
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}
	var consumed atomic.Int64
	go func() {
		frame, puts := make([]byte, defaultFrame), rand.New(rand.NewPCG(seed, 1))
		for at := 0; at < len(sent) && t.Context().Err() == nil; {
			n := copy(frame[:puts.IntN(len(frame))], sent[at:])
			for at+n-int(consumed.Load()) > defaultWindow && t.Context().Err() == nil {
				runtime.Gosched()
			}
			b.put(frame[:n])
			clear(frame) // the inbox must have a copy
			at += n
		}
		b.finish()
	}()
	var got []byte
	for piece, err := make([]byte, 2*defaultFrame), error(nil); err == nil; {
		n, taken := 0, b.begin(piece[:1+random.IntN(len(piece)-1)])
		if n, err = b.wait(t.Context(), time.Time{}); err != nil && !errors.Is(err, io.EOF) || n < taken {
			t.Fatalf("%d bytes of %d that were there, error %v", n, taken, err)
		}
		got = append(got, piece[:n]...)
		consumed.Add(int64(n))
	}
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes are other than the %d sent", len(got), len(sent))
	}
	if free := p.free.Load(); free != copies*defaultWindow {
		t.Errorf("%d bytes are free after all were taken, want %d", free, copies*defaultWindow)
	}
}

// TestInboxLeavesMemory checks that nothing is written to the memory of a take that has ended.
func TestInboxLeavesMemory(t *testing.T) {
	p := &purse{}
	p.free.Store(copies)
	b := newInbox(p)
	piece := make([]byte, 1)
	take := func(ctx context.Context, due time.Time) (int, error) {
		b.begin(piece)
		return b.wait(ctx, due)
	}
	if _, err := take(t.Context(), time.Now()); !errors.Is(err, errLate) {
		t.Fatalf("error %v, want %v", err, errLate)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := take(ctx, time.Time{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want %v", err, context.Canceled)
	}
	if b.put([]byte{1}); piece[0] != 0 {
		t.Error("the memory of a take that has ended was written to")
	}
	if n, err := take(t.Context(), time.Time{}); n != 1 || err != nil || piece[0] != 1 {
		t.Errorf("took %d bytes, %v, error %v", n, piece, err)
	}
}

// TestReceivedGarbage bounds the memory that is allocated for receiving a long message. Garbage counts against no budget, and many
// clients that send at once make it faster than it is collected.
func TestReceivedGarbage(t *testing.T) {
	const size = 4 << 20
	p := &purse{}
	p.free.Store(1 << 40)
	s := &stream{conn: &conn{server: &Server{cfg: Config{Memory: p}}}, in: newInbox(p), budget: p, ctx: t.Context(), remote: true}
	held := func() int {
		s.in.mu.Lock()
		defer s.in.mu.Unlock()
		return len(s.in.data)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	go func() {
		frame := make([]byte, defaultFrame)
		for sent := 0; sent < size; sent += len(frame) {
			for held()+len(frame) > defaultWindow && t.Context().Err() == nil {
				runtime.Gosched() // a client would wait for a window update
			}
			s.in.put(frame)
		}
	}()
	body, err := s.readMessage(nil, size, time.Time{})
	if err != nil || len(body) != size {
		t.Fatalf("%d bytes, error %v", len(body), err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > size*3/2 {
		t.Errorf("%d bytes were allocated for a message of %d", took, size)
	}
}
