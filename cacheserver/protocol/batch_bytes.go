// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"context"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// BatchBytesHeader is the header of a DoGet with which a client requests a size, in bytes, for the batches of an epoch.
const BatchBytesHeader = "datacache-batch-bytes"

// BatchBytes returns the size that the client requests, 0 if it doesn't. Errors are INVALID_ARGUMENT statuses.
func BatchBytes(ctx context.Context) (int64, error) {
	said := metadata.ValueFromIncomingContext(ctx, BatchBytesHeader)
	if len(said) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseInt(said[0], 10, 64)
	if err != nil || n < 1 || len(said) > 1 {
		return 0, status.Errorf(codes.InvalidArgument, "header %s = %q: want one number of bytes, 1 or more", BatchBytesHeader, said)
	}
	return n, nil
}
