// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport/h2"
)

// SendTimeout is how long a client may read nothing of the data sent to it, unless a node is configured otherwise. After that its
// stream or connection is closed and its memory released. It is longer than a training job usually pauses for a checkpoint or an
// evaluation. After a longer pause, as in a debugger, a job resumes as after any broken connection.
const SendTimeout = 10 * time.Minute

// MaxRows bounds a message of row numbers in an exchange, in bytes. With grpc-go, an exchange may hold that many all the time.
const MaxRows = 4 << 20

const (
	// requestTimeout is how long a client may take to send a complete request.
	requestTimeout = 30 * time.Second
	// maxStreams is the maximum number of concurrent calls on a connection.
	maxStreams = 512

	// maxRequest bounds messages with a descriptor or a ticket, each of which may have 64 KiB, and the schema message of an exchange.
	maxRequest = 2 * protocol.MaxBytes
	// maxPut bounds a message with rows that a client puts.
	maxPut = 64 << 20
	// maxReport bounds one message from a data node to the head.
	maxReport = 4 << 20
)

// limit returns the maximum length of a method's messages. Long messages are only allowed after the first message was admitted.
func limit(method string, first bool) int {
	switch name := method[strings.LastIndexByte(method, '/')+1:]; {
	case first:
		return maxRequest
	case name == "DoExchange":
		return MaxRows
	case name == "DoPut":
		return maxPut
	case name == "Join":
		return maxReport
	}
	return maxRequest
}

// cancelKey is the context key of a call's cancel function, when grpc-go serves the call.
type cancelKey struct{}

// Cancel ends the call whose context is ctx: its handler's sends and receives then fail, even one that is waiting for the client. The
// status that the handler returns is still sent.
func Cancel(ctx context.Context) {
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
		return
	}
	h2.Cancel(ctx)
}

// WaitsForNetwork reports whether more than unsent bytes of a call's connection are not sent yet because of the network, rather than
// because the client doesn't read. It is false where that is not known, as when grpc-go serves the call.
func WaitsForNetwork(ctx context.Context, unsent int) bool { return h2.WaitsForNetwork(ctx, unsent) }

// Client is the host of the address of a call's client.
func Client(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "unknown"
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil { // not TCP
		return p.Addr.String()
	}
	return host
}
