// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package h2 is a gRPC server over HTTP/2 that sends large messages from where they lie.
//
// It serves what is registered with it as google.golang.org/grpc does (the same handlers, interceptors, metadata,
// deadlines, status details and drain), with one difference: a [Message] goes to the kernel in one writev of frame
// headers and the message's own slices. grpc-go copies every byte into a write buffer, cuts frames of 16 KiB whatever
// the peer takes (grpc/grpc-go#4630), and hands them to a goroutine of its own.
//
// A connection has one goroutine that reads, and one for each running call. A stream that wants to write waits for its
// turn (turn.go): turns are granted in the order of asking, each is a bounded piece within the peer's windows, and the
// stream that has the turn also writes the control frames that are queued. SendMsg returns when the kernel has the
// bytes; the sender may use its memory again.
//
// HTTP/2 is RFC 9113, header compression RFC 7541, gRPC's use of them PROTOCOL-HTTP2.md in grpc/grpc.
package h2
