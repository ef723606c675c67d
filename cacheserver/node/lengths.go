// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// startMeasuring answers a request for lengths of the node's rows. It ends with the session.
func (r *reporter) startMeasuring(n *Node, spec peer.Lengths) {
	session := r.stream.Context()
	go func() {
		answer, err := measure(session, n, spec)
		if err != nil {
			answer = peer.Measured{Reason: status.Convert(err).Message()}
		}
		answer.ID = spec.ID
		select {
		case r.answers <- peer.ToHead{Measured: &answer}:
		case <-session.Done():
		}
	}()
}

func measure(ctx context.Context, n *Node, spec peer.Lengths) (m peer.Measured, err error) {
	if spec.Over == 0 && spec.Positions > peer.MostLengths {
		return m, status.Errorf(codes.InvalidArgument, "lengths of %d positions, want at most %d", spec.Positions, peer.MostLengths)
	}
	lent, err := n.lend(spec.Ticket)
	if err != nil {
		return m, err
	}
	defer lent.Done()
	seen := int64(0)
	err = lent.Lengths(ctx, n.cfg.Budget.Clients(), spec.Positions, func(lengths []int32) {
		for _, length := range lengths {
			switch {
			case spec.Over == 0:
				m.Lengths = binary.LittleEndian.AppendUint32(m.Lengths, uint32(length))
			case length > spec.Over:
				if m.Long == 0 {
					m.First, m.Length = seen, length
				}
				m.Long++
			}
			seen++
		}
	})
	return m, err
}
