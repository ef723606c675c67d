// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"strings"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport/h2"
)

// SendTimeout is how long a client may read nothing of what was sent to it, unless a node is told otherwise. Then its stream or connection
// ends, and with it what is held for it. It is longer than a training job usually pauses for a checkpoint or an evaluation; a job that
// pauses for longer, as in a debugger, asks again and goes on where it was, as after any broken connection.
const SendTimeout = 10 * time.Minute

// MaxRows bounds a message of row numbers in an exchange, in bytes. Over grpc-go an exchange may hold so many all the time.
const MaxRows = 4 << 20

const (
	// requestTimeout is how long a client may take to send a request.
	requestTimeout = 30 * time.Second
	// maxStreams is how many calls a connection may have open.
	maxStreams = 512

	// maxRequest bounds a message that holds a descriptor or a ticket, which may have 64 KiB, and an exchange's schema.
	maxRequest = 2 * protocol.MaxBytes
	// maxReport bounds what a data node tells its head at a time.
	maxReport = 4 << 20
)

// limit bounds the messages of a method. The long ones come after a first one that was admitted.
func limit(method string, first bool) int {
	switch name := method[strings.LastIndexByte(method, '/')+1:]; {
	case first:
		return maxRequest
	case name == "DoExchange":
		return MaxRows
	case name == "Join":
		return maxReport
	}
	return maxRequest
}

// cancelKey is the key of a call's cancel function in its context, under grpc-go.
type cancelKey struct{}

// Cancel ends the context of the call that ctx is of: its handler's sends and receives then fail, also one that waits for the client. The
// status that the handler returns is still sent.
func Cancel(ctx context.Context) {
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
		return
	}
	h2.Cancel(ctx)
}
