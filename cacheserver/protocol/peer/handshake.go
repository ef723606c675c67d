// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

const (
	nonceSize = 32
	macSize   = sha256.Size

	// handshakeTime bounds the handshake, from opening the stream to the other side's proof.
	handshakeTime = 10 * time.Second
)

// The handshake proves to each side that the other has the same secret, without revealing it:
//
//	node: nonce N
//	head: nonce H, MAC of the empty message
//	node: MAC and text of its first message, and so on in both directions
//
// The key of a direction is HMAC-SHA256(secret, sender | N | H). A message's MAC is HMAC-SHA256(key, number of the message in its
// direction | text), so that a message can't be forged, altered, dropped, replayed or reflected. An empty secret provides no
// protection.

// authenticator computes the MACs of one direction's messages, in order. It is not safe for concurrent use.
type authenticator struct {
	mac   hash.Hash
	count uint64
}

// The sender names in key derivation; both have the same length.
const (
	headSends = "head"
	nodeSends = "node"
)

func newAuthenticator(secret, sender string, nodeNonce, headNonce []byte) *authenticator {
	return &authenticator{mac: hmac.New(sha256.New, derive(secret, []byte(sender), nodeNonce, headNonce))}
}

// derive returns HMAC-SHA256(secret, parts); the lengths of the parts must be fixed.
func derive(secret string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	for _, p := range parts {
		mac.Write(p)
	}
	return mac.Sum(nil)
}

// next returns the MAC of the direction's next message.
func (a *authenticator) next(text []byte) []byte {
	a.mac.Reset()
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], a.count)
	a.count++
	a.mac.Write(number[:])
	a.mac.Write(text)
	return a.mac.Sum(nil)
}

// seal prepends the MAC to the text.
func (a *authenticator) seal(text []byte) []byte { return append(a.next(text), text...) }

// open verifies the MAC and returns the text after it.
func (a *authenticator) open(message []byte) ([]byte, bool) {
	if len(message) < macSize {
		return nil, false
	}
	text := message[macSize:]
	return text, hmac.Equal(a.next(text), message[:macSize])
}

var (
	errSecret = status.Error(codes.Unauthenticated, "the node's cache secret differs from the head's; give both the same CACHE_SECRET")
	errSilent = status.Errorf(codes.DeadlineExceeded, "the other side did not prove that it has the cache secret within %s", handshakeTime)
)

// accept is the head's side of the handshake; the MAC of the node's first message is the node's proof.
func accept(raw rawStream, secret string) (HeadStream, error) {
	var nodeNonce protocol.Raw
	if err := raw.RecvMsg(&nodeNonce); err != nil {
		return HeadStream{}, err
	}
	if len(nodeNonce) != nonceSize {
		return HeadStream{}, status.Errorf(codes.InvalidArgument, "handshake: a nonce of %d bytes, want %d", len(nodeNonce), nonceSize)
	}
	headNonce := nonce()
	s := HeadStream{
		raw: raw,
		out: newAuthenticator(secret, headSends, nodeNonce, headNonce),
		in:  newAuthenticator(secret, nodeSends, nodeNonce, headNonce),
	}
	answer := protocol.Raw(append(headNonce, s.out.seal(nil)...))
	return s, raw.SendMsg(&answer)
}

// greet is the node's side of the handshake. When it succeeds, the head has proved that it has the secret.
func greet(raw rawStream, secret string) (NodeStream, error) {
	nodeNonce := nonce()
	_ = raw.SendMsg((*protocol.Raw)(&nodeNonce)) // the next call returns the status of an error
	var answer protocol.Raw
	if err := raw.RecvMsg(&answer); err != nil {
		return NodeStream{}, err
	}
	if len(answer) != nonceSize+macSize {
		return NodeStream{}, status.Errorf(codes.Unauthenticated, "handshake: an answer of %d bytes, want %d", len(answer), nonceSize+macSize)
	}
	headNonce := answer[:nonceSize]
	s := NodeStream{
		raw: raw,
		out: newAuthenticator(secret, nodeSends, nodeNonce, headNonce),
		in:  newAuthenticator(secret, headSends, nodeNonce, headNonce),
	}
	if _, ok := s.in.open(answer[nonceSize:]); !ok {
		return NodeStream{}, errSecret
	}
	return s, nil
}

func nonce() []byte {
	n := make([]byte, nonceSize)
	_, _ = rand.Read(n) // does not fail
	return n
}

// within runs one side of the handshake and returns an error after handshakeTime. The caller must then end the stream, which ends the
// handshake's goroutine.
func within[S any](raw rawStream, secret string, handshake func(rawStream, string) (S, error)) (S, error) {
	type result struct {
		stream S
		err    error
	}
	ended := make(chan result, 1)
	go func() {
		stream, err := handshake(raw, secret)
		ended <- result{stream, err}
	}()
	timer := time.NewTimer(handshakeTime)
	defer timer.Stop()
	select {
	case r := <-ended:
		return r.stream, r.err
	case <-timer.C:
		var none S
		return none, errSilent
	}
}

// TicketKey is the key that authenticates a cache's tickets. It is derived from the secret and the salt of the assignment, and is
// never sent.
func TicketKey(secret string, salt []byte) []byte { return derive(secret, []byte("tickets"), salt) }

// PutKey is the key that authenticates the tickets and receipts of puts. It is the same after a restart of the head.
func PutKey(secret string) []byte { return derive(secret, []byte("puts"), nil) }
