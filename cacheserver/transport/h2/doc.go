// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package h2 is a gRPC server over HTTP/2 that sends large messages without copying them.
//
// It serves registered services as google.golang.org/grpc does (the same handlers, interceptors, metadata, deadlines, status details
// and graceful shutdown), with one difference: a [Message] is passed to the kernel in one writev of frame headers and the message's
// own slices. grpc-go copies every byte to a write buffer, cuts frames of 16 KiB regardless of what the peer accepts
// (grpc/grpc-go#4630), and passes them to a separate goroutine.
//
// A connection has one goroutine that reads, and one for each running call. A stream that wants to write waits for its turn
// (turn.go): turns are granted in the order of requests, each is a bounded piece within the peer's windows, and the stream that has
// the turn also writes the queued control frames. SendMsg returns when the kernel has the bytes; the sender may then reuse its
// memory.
//
// HTTP/2 is RFC 9113, header compression RFC 7541, gRPC's use of them PROTOCOL-HTTP2.md in grpc/grpc.
package h2
