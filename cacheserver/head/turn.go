// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"time"

	"google.golang.org/grpc/status"
)

const (
	// answersMemory bounds the memory of answers that are made at the same time. Connections leave that much free.
	answersMemory = 8 << 20
	// answerMemory and endpointMemory are the approximate memory of an answer without endpoints, and of an endpoint, while it is made and
	// sent. An endpoint may also have twice what the request names, such as the parts of a mixture.
	answerMemory, endpointMemory = 64 << 10, 3 << 9
	// schemaCopies is how often an answer has the encoded schema while it is made and sent: as columns, encoded, and in the message.
	schemaCopies = 4
	// turnTime is how long a client that is slow to read its answer keeps others waiting.
	turnTime = time.Second
)

// turn waits, in the order of the calls, until there is room for an answer, whose size is estimated from the length of the request in bytes, the
// number of data nodes and the schema of v. The room is kept until the call's context ends, but not longer than turnTime.
func (s *service) turn(ctx context.Context, request int, v *view) error {
	size := min(answerMemory+int64(s.cfg.Nodes)*int64(endpointMemory+2*request)+schemaCopies*int64(len(v.plan.schemaBytes(nil))), answersMemory)
	if err := s.room.Acquire(ctx, size); err != nil {
		return status.FromContextError(err).Err()
	}
	ctx, cancel := context.WithTimeout(ctx, turnTime)
	context.AfterFunc(ctx, func() {
		cancel()
		s.room.Release(size)
	})
	return nil
}
