// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// end is one end of an in-memory stream. sent records the messages it sent; change alters them in transit.
type end struct {
	ctx    context.Context
	out    chan<- []byte
	in     <-chan []byte
	sent   [][]byte
	change func(number int, message []byte) []byte
}

func (e *end) Context() context.Context { return e.ctx }

func (e *end) SendMsg(m any) error {
	message := bytes.Clone(*m.(*protocol.Raw))
	e.sent = append(e.sent, message)
	if e.change != nil {
		message = e.change(len(e.sent)-1, bytes.Clone(message))
	}
	select {
	case e.out <- message:
		return nil
	case <-e.ctx.Done():
		return e.ctx.Err()
	}
}

func (e *end) RecvMsg(m any) error {
	select {
	case message, ok := <-e.in:
		if !ok {
			return io.EOF
		}
		*m.(*protocol.Raw) = message
		return nil
	case <-e.ctx.Done():
		return e.ctx.Err()
	}
}

func pipe(t *testing.T) (node, head *end) {
	t.Helper()
	up, down := make(chan []byte, 8), make(chan []byte, 8)
	return &end{ctx: t.Context(), out: up, in: down}, &end{ctx: t.Context(), out: down, in: up}
}

// exchange performs the handshake, sends a Hello to the head and an Assign to the node, and returns each side's error.
func exchange(node, head *end, nodeSecret, headSecret string) (nodeErr, headErr error) {
	accepted := make(chan error, 1)
	go func() {
		s, err := within(head, headSecret, accept)
		if err == nil {
			_, err = s.Recv()
		}
		if err == nil {
			err = s.Send(ToNode{Assign: &Assign{Plan: "p", Salt: []byte("salt")}})
		}
		close(head.out)
		accepted <- err
	}()
	s, err := within(node, nodeSecret, greet)
	if err == nil {
		err = s.Send(ToHead{Hello: &Hello{V: Version, Address: "a:1"}})
	}
	if err == nil {
		_, err = s.Recv()
	}
	close(node.out)
	return err, <-accepted
}

func TestHandshake(t *testing.T) {
	flip := func(at int) func(int, []byte) []byte {
		return func(number int, m []byte) []byte {
			if number == at {
				m[len(m)-1] ^= 1
			}
			return m
		}
	}
	tests := []struct {
		name                   string
		nodeSecret, headSecret string
		up, down               func(int, []byte) []byte
		node, head             codes.Code
	}{
		{name: "one secret", nodeSecret: "s", headSecret: "s"},
		{name: "none"},
		{name: "the head has another", nodeSecret: "s", headSecret: "t", node: codes.Unauthenticated, head: codes.Unknown},
		{name: "the head has none", nodeSecret: "s", node: codes.Unauthenticated, head: codes.Unknown},
		{name: "the node has none", headSecret: "s", node: codes.Unauthenticated, head: codes.Unknown},
		{name: "the node's nonce is altered", nodeSecret: "s", headSecret: "s", up: flip(0), node: codes.Unauthenticated, head: codes.Unknown},
		{name: "the head's proof is altered", nodeSecret: "s", headSecret: "s", down: flip(0), node: codes.Unauthenticated, head: codes.Unknown},
		{name: "hello is altered", nodeSecret: "s", headSecret: "s", up: flip(1), node: codes.Unknown, head: codes.Unauthenticated},
		{name: "the assignment is altered", nodeSecret: "s", headSecret: "s", down: flip(1), node: codes.Unauthenticated},
		{name: "a short nonce", nodeSecret: "s", headSecret: "s", up: func(_ int, m []byte) []byte { return m[:8] }, node: codes.Unknown, head: codes.InvalidArgument},
		{name: "a long answer", nodeSecret: "s", headSecret: "s", down: func(_ int, m []byte) []byte { return append(m, 0) }, node: codes.Unauthenticated, head: codes.Unknown},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			node, head := pipe(t)
			node.change, head.change = test.up, test.down
			nodeErr, headErr := exchange(node, head, test.nodeSecret, test.headSecret)
			if status.Code(nodeErr) != test.node || status.Code(headErr) != test.head {
				t.Errorf("the node's end: %v, the head's: %v; want codes %v, %v", nodeErr, headErr, test.node, test.head)
			}
			if hello := slices.ContainsFunc(node.sent, func(m []byte) bool { return bytes.Contains(m, []byte("a:1")) }); hello && test.node == codes.Unauthenticated && len(head.sent) == 1 {
				t.Error("a node told its address before the head proved itself")
			}
		})
	}
}

// TestHandshakeCannotBeReplayed checks that an attacker who recorded a whole session can neither open another one by replaying it,
// nor answer a node with the node's own messages.
func TestHandshakeCannotBeReplayed(t *testing.T) {
	node, head := pipe(t)
	if a, b := exchange(node, head, "s", "s"); a != nil || b != nil {
		t.Fatal(a, b)
	}
	again, freshHead := pipe(t)
	again.change = func(number int, _ []byte) []byte { return node.sent[number] }
	if _, err := exchange(again, freshHead, "x", "s"); err == nil {
		t.Error("a head took a replayed node")
	}
	freshNode, impostor := pipe(t)
	impostor.change = func(number int, _ []byte) []byte { return head.sent[number] }
	if err, _ := exchange(freshNode, impostor, "s", "x"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a node took a replayed head: %v", err)
	}
	mirror, _ := pipe(t)
	loop := make(chan []byte, 8)
	mirror.out, mirror.in = loop, loop
	if _, err := greet(mirror, "s"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a node took its own messages for a head's: %v", err)
	}
}

func TestHandshakeEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, head := pipe(t)
		node, _ := pipe(t)
		node.ctx, head.ctx = ctx, ctx
		begin := time.Now()
		if _, err := within(head, "s", accept); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a silent node: %v", err)
		}
		if _, err := within(node, "s", greet); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a silent head: %v", err)
		}
		if took := time.Since(begin); took != 2*handshakeTime {
			t.Errorf("took %s", took)
		}
	})
}

func TestTicketKeyNeedsTheSecret(t *testing.T) {
	key := TicketKey("s", []byte("salt"))
	if bytes.Equal(key, TicketKey("t", []byte("salt"))) || bytes.Equal(key, TicketKey("s", []byte("tlas"))) || !bytes.Equal(key, TicketKey("s", []byte("salt"))) {
		t.Error("the key must follow from secret and salt")
	}
}

// fields lists the fields of a struct in JSON, and those of the structs of this module in it.
func fields(of reflect.Type) string {
	if of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		return fields(of.Elem())
	}
	if of.Kind() != reflect.Struct {
		return ""
	}
	var names []string
	for _, f := range reflect.VisibleFields(of) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		names = append(names, name+fields(f.Type))
	}
	return "{" + strings.Join(names, " ") + "}"
}

// TestTicketsBelongToTheVersion has the fields of tickets: a data node of another release, which did not know one, would send other rows.
func TestTicketsBelongToTheVersion(t *testing.T) {
	const want = "9: {d n i x k b r e{Rows Seed Number Shuffle Clump GlobalBatch Tail Lanes Window} s{Rank World Worker Workers StartStep}" +
		" m{part parts{rows weights} phases unit} c o j l f p{seed of from to shuffle} q y w{n a p j i}}"
	if got := fmt.Sprintf("%d: %s", Version, fields(reflect.TypeFor[protocol.Ticket]())); got != want {
		t.Errorf("version and fields of tickets: %s, were %s: a change of the fields needs another peer.Version", got, want)
	}
}
