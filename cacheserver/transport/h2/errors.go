// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors for handlers that send or receive after the end.
var (
	errBroken    = status.Error(codes.Unavailable, "the connection has ended")
	errReset     = status.Error(codes.Canceled, "the client cancelled the call")
	errViolation = status.Error(codes.Internal, "the client broke the protocol")
	errCallEnded = status.Error(codes.Internal, "the call has ended")
)

// Reasons for the end of connections that violated nothing.
var (
	errDrained = errors.New("drained")
	errSilent  = errors.New("the client does not answer pings")
)

// violation is a protocol error of the peer that ends the connection; the reason is sent in GOAWAY.
type violation struct {
	code   http2.ErrCode
	reason string
}

// Error implements error.
func (v violation) Error() string { return fmt.Sprintf("%v: %s", v.code, v.reason) }

func violated(code http2.ErrCode, format string, args ...any) error {
	return violation{code, fmt.Sprintf(format, args...)}
}
