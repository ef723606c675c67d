// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	b := New(3 * BufferSize)
	first, err := b.Buffer(t.Context(), 0)
	if err != nil || len(first.Bytes) != BufferSize || b.Used() != BufferSize {
		t.Fatalf("%d bytes, %d used, %v", len(first.Bytes), b.Used(), err)
	}
	time.AfterFunc(50*time.Millisecond, first.Free)
	second, err := b.Buffer(t.Context(), 0) // waits
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Large().Take(t.Context(), BufferSize); err != nil {
		t.Errorf("the part of large requests: %v", err)
	}
	if err := b.Take(t.Context(), BufferSize+1); !errors.Is(err, ErrFull) {
		t.Errorf("more than there is: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Take(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("for a client that left: %v", err)
	}
	second.Free()
	b.Large().Put(BufferSize)
	if b.Used() != 0 {
		t.Errorf("%d bytes are used", b.Used())
	}
	var none *Budget
	if buf, err := none.Buffer(t.Context(), 1<<60); err != nil || none.Large().Take(t.Context(), 1<<60) != nil {
		t.Error("a nil Budget has a limit")
	} else {
		buf.Free()
	}
}

// TestListener serves more clients than have memory: idle connections give way, long headers take more, and all of it comes back.
func TestListener(t *testing.T) {
	t.Parallel()
	b := New(3 * 4 * connectionBytes)
	on, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := b.Listen(on, 64<<10)
	most := make(chan int64, 100)
	server := &http.Server{ConnState: counted.NoteState, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		most <- b.Used()
		_, _ = io.WriteString(w, "x")
	})}
	go func() { _ = server.Serve(counted) }()
	defer server.Close()
	var idle []net.Conn
	ask := func(fields string) error {
		conn, err := net.Dial("tcp", on.Addr().String())
		if err != nil {
			return err
		}
		idle = append(idle, conn)
		_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", fields)
		deadline.Bound(t, conn)
		var answer [12]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil || string(answer[:]) != "HTTP/1.1 200" {
			return fmt.Errorf("%q, %w", answer, err)
		}
		return nil
	}
	for i := range 10 {
		if err := ask(""); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if used := <-most; used > 4*connectionBytes {
			t.Errorf("connection %d: %d bytes are used", i, used)
		}
	}
	if err := ask(strings.Repeat("a: b\r\n", 1000)); err != nil {
		t.Error(err)
	}
	if used := <-most; used < connectionBytes+(6000-freeHeader)*perHeaderByte {
		t.Errorf("%d bytes are used for a long header", used)
	}
	for _, conn := range idle {
		conn.Close()
	}
	deadline.Until(t, "all memory to be released", func() bool { return b.Used() == 0 })
}
