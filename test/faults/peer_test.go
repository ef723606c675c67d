// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

const joinMethod = "/datacache.peer.v1.Peer/Join"

// TestOddNodesAreRefused sends invalid messages of the peer protocol in place of a node that the head expects.
func TestOddNodesAreRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, onS3(t, 4, 50, 25), 2)
	c.secret = "sesame"
	c.startHead()
	c.startNode(0)
	c.awaitNode(0, "Ready", "")
	const hello = `{"hello":{"v":9,"index":1,"incarnation":"odd","address":"127.0.0.1:1"}}`
	tests := []struct {
		name     string
		messages []string
		code     codes.Code
		reason   string
	}{
		{"progress before hello", []string{`{"progress":{"bytes":1}}`}, codes.InvalidArgument, "first message must be hello"},
		{"an empty message", []string{""}, codes.InvalidArgument, "peer message"},
		{"an empty object", []string{"{}"}, codes.InvalidArgument, "first message must be hello"},
		{"no JSON", []string{"\x00\xff hello"}, codes.InvalidArgument, "peer message"},
		{"JSON of another kind", []string{"[1,2]"}, codes.InvalidArgument, "peer message"},
		{"deep JSON", []string{strings.Repeat("[", 1<<20)}, codes.InvalidArgument, "peer message"},
		{"an older version", []string{`{"hello":{"v":8,"index":1,"incarnation":"odd","address":"h:1"}}`}, codes.FailedPrecondition, "the node speaks version 8 of the peer protocol, the head 9; run the same release on both"},
		{"a newer version", []string{`{"hello":{"v":10,"index":1,"incarnation":"odd","address":"h:1"}}`}, codes.FailedPrecondition, "the node speaks version 10 of the peer protocol, the head 9; run the same release on both"},
		{"a negative index", []string{`{"hello":{"v":9,"index":-1,"incarnation":"odd","address":"h:1"}}`}, codes.InvalidArgument, "node index -1"},
		{"an index too high", []string{`{"hello":{"v":9,"index":2,"incarnation":"odd","address":"h:1"}}`}, codes.InvalidArgument, "node index 2"},
		{"an index beyond int64", []string{`{"hello":{"v":9,"index":99999999999999999999}}`}, codes.InvalidArgument, "peer message"},
		{"no incarnation", []string{`{"hello":{"v":9,"index":1,"address":"h:1"}}`}, codes.InvalidArgument, "incarnation"},
		{"hello twice", []string{hello, hello}, codes.InvalidArgument, "says nothing"},
		{"no JSON after hello", []string{hello, "}{"}, codes.InvalidArgument, "peer message"},
		{"a split of another node", []string{hello, `{"progress":{"plan":"PLAN","done":[{"split":0,"rows":25,"hash":"aGFzaGhhc2hoYXNoaGFzaA=="}]}}`}, codes.InvalidArgument, "not its own"},
		{"a split that is not there", []string{hello, `{"progress":{"plan":"PLAN","done":[{"split":-1,"rows":25,"hash":"aGFzaGhhc2hoYXNoaGFzaA=="}]}}`}, codes.InvalidArgument, "not its own"},
		{"a negative number of rows", []string{hello, `{"progress":{"plan":"PLAN","done":[{"split":5,"rows":-25,"hash":"aGFzaGhhc2hoYXNoaGFzaA=="}]}}`}, codes.InvalidArgument, "not its own"},
		{"loaded without a split", []string{hello, `{"loaded":{"plan":"PLAN","rows":100,"bytes":1}}`}, codes.InvalidArgument, "0 of 4 splits"},
		{"loaded with the rows of no split", []string{hello, `{"loaded":{"plan":"PLAN","rows":0,"bytes":0,"column_bytes":[0,0,0,0]}}`}, codes.InvalidArgument, "0 of 4 splits"},
		{"a huge message", []string{`{"hello":"` + strings.Repeat("x", 16<<20) + `"}`}, codes.ResourceExhausted, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			wantStatus(t, c.speak("sesame", test.messages...), test.code, test.reason)
			c.head.alive()
			c.refused("data node 1")
		})
	}
	wantStatus(t, c.speak("", hello), codes.Unauthenticated, "secret")
	wantStatus(t, c.speak("sesam", hello), codes.Unauthenticated, "secret")

	c.startNode(1)
	c.await(protocol.StateReady)
	c.servesAll(3)
}

// speak joins the head, sends messages with the plan's name filled in, and returns the status that ends the stream.
func (c *cluster) speak(secret string, messages ...string) error {
	c.t.Helper()
	ctx, cancel := context.WithCancel(deadline.Context(c.t))
	defer cancel()
	conn, err := dial(ctx, c.headAddr)
	if err != nil {
		c.t.Fatal(err)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, joinMethod, grpc.ForceCodecV2(transport.NewCodec()))
	if err != nil {
		return err
	}
	// The handshake: our nonce, then the head's with the MAC of its empty first message. See cacheserver/protocol/peer.
	ours := protocol.Raw(strings.Repeat("n", 32))
	if err := stream.SendMsg(&ours); err != nil {
		return err
	}
	var heard protocol.Raw
	if err := stream.RecvMsg(&heard); err != nil {
		return err
	}
	theirs := heard[:32]
	if want := messageMAC(secret, "head", ours, theirs, 0, ""); secret == c.secret && !bytes.Equal(heard[32:], want) {
		c.t.Errorf("the head proved itself by %x, want %x", heard[32:], want)
	}
	for i, message := range messages {
		if i > 0 { // the response to hello is the assignment
			if err := stream.RecvMsg(&heard); err != nil {
				return err
			}
		}
		message = strings.ReplaceAll(message, "PLAN", planOf(heard))
		raw := protocol.Raw(append(messageMAC(secret, "node", ours, theirs, i, message), message...))
		if err := stream.SendMsg(&raw); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	for {
		if err := stream.RecvMsg(&heard); err != nil {
			return err
		}
	}
}

// messageMAC is the MAC that precedes a message of head or node; number counts the sender's messages.
func messageMAC(secret, sender string, nodeNonce, headNonce []byte, number int, text string) []byte {
	key := hmac.New(sha256.New, []byte(secret))
	key.Write(slices.Concat([]byte(sender), nodeNonce, headNonce))
	mac := hmac.New(sha256.New, key.Sum(nil))
	mac.Write([]byte{7: byte(number)})
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// planOf extracts the plan's name from an assignment.
func planOf(assignment []byte) string {
	_, after, _ := strings.Cut(string(assignment), `"plan":"`)
	name, _, _ := strings.Cut(after, `"`)
	return name
}

// TestStrangersThatSayNothing opens many joins that never send a hello: the cache must continue to work.
func TestStrangersThatSayNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, onS3(t, 2, 50, 25), 2)
	c.startHead()
	ctx, cancel := context.WithCancel(deadline.Context(t))
	defer cancel()
	conn, err := dial(ctx, c.headAddr, grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if _, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, joinMethod, grpc.ForceCodecV2(transport.NewCodec())); err != nil {
			t.Fatal(err)
		}
	}
	c.startNode(0)
	c.startNode(1)
	c.await(protocol.StateReady)
	c.servesAll(2)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, joinMethod, grpc.ForceCodecV2(transport.NewCodec()))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var heard protocol.Raw
	if err := s.RecvMsg(&heard); status.Code(err) == codes.OK {
		t.Errorf("a join without hello ended with %v", fmt.Sprint(err))
	}
	c.head.alive()
}
