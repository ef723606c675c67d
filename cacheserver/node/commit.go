// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/put/commit"
)

// write writes the files of the node's rows of a dataset that the head commits to a table. Its errors are UNAVAILABLE or RESOURCE_EXHAUSTED if
// trying again may help.
func (s *datasets) write(signed []byte, stream flight.FlightService_DoActionServer) error {
	var w peer.WriteFiles
	if err := protocol.NewSigner(peer.PutKey(s.cfg.Secret)).Open(string(signed), &w); err != nil {
		return status.Error(codes.Unauthenticated, "an order to write files, and not this cache's head made it")
	}
	d := s.find(w.Put)
	if d == nil || d.Fingerprint != w.Fingerprint || !d.Rows.Retain() {
		return status.Errorf(codes.Unavailable, "data node %d has no rows of it", s.cfg.Index)
	}
	defer d.Rows.Release()
	if s.cfg.Tables == nil {
		return status.Errorf(codes.FailedPrecondition, "data node %d can't write to tables", s.cfg.Index)
	}
	parts := func(yield func(commit.Part) bool) {
		lo := int64(0)
		for _, p := range d.Parts() {
			if !yield(commit.Part{Number: p.Part, Batches: d.Rows.Records(d.Layout.All(), lo, lo+p.Rows)}) {
				return
			}
			lo += p.Rows
		}
	}
	err := s.cfg.Tables.Write(stream.Context(), w.Order, d.Layout.Schema(), parts, func(file []byte) error {
		return stream.Send(&flight.Result{Body: file})
	})
	var refusal *commit.Refusal
	var full *offheap.ExhaustedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return status.Errorf(codes.FailedPrecondition, "data node %d: %v", s.cfg.Index, err)
	case errors.As(err, &full):
		return status.Errorf(codes.ResourceExhausted, "data node %d: %v", s.cfg.Index, err)
	}
	return status.Errorf(codes.Unavailable, "data node %d: %v", s.cfg.Index, err)
}
