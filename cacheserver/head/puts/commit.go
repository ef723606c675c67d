// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package puts

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/put"
	"github.com/kubeflow/datacache/cacheserver/put/commit"
	"github.com/kubeflow/datacache/cacheserver/put/incoming"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

const (
	// commitWait is how long a call waits for its commit. After that the client asks again.
	commitWait = 20 * time.Second
	// writeStall is how long a data node may take for one file.
	writeStall = 10 * time.Minute
	// writeTries bounds how often a data node is asked again without any success, about one a second.
	writeTries = 300
)

// commitDataset commits a dataset to a table of the cache's catalog.
func (s *Service) commitDataset(ctx context.Context, body []byte) (any, error) {
	var c protocol.Commit
	if err := protocol.DecodeBody(protocol.PutCommit, body, &c); err != nil {
		return nil, err
	}
	switch c.Mode {
	case "":
		c.Mode = protocol.CommitAppend
	case protocol.CommitAppend, protocol.CommitReplace:
	default:
		return nil, status.Errorf(codes.InvalidArgument, "mode: %.64q, want %q or %q", c.Mode, protocol.CommitAppend, protocol.CommitReplace)
	}
	d, err := s.find(c.Dataset)
	if err != nil {
		return nil, err
	}
	if d.Rows == 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "dataset %s: it has no rows, of which a snapshot could be made", d.Name)
	}
	layout, err := incoming.Layout(d.Schema)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "dataset %s: %v", d.Name, err)
	}
	r := commit.Request{
		Table: c.Table, Mode: c.Mode, Put: d.ID, Dataset: d.Name + "@" + d.Fingerprint, Fingerprint: d.Fingerprint, Schema: layout.Schema(),
	}
	wait, cancel := context.WithTimeout(ctx, commitWait)
	defer cancel()
	committed, err := s.commits.Do(r, wait.Done(), func(ctx context.Context) (commit.Result, error) { return s.commit(ctx, r) })
	var refusal *commit.Refusal
	switch {
	case err == nil:
		return committed, nil
	case errors.As(err, &refusal):
		return nil, status.Errorf(codes.FailedPrecondition, "commit %s to %s: %v", r.Dataset, r.Table, err)
	}
	return nil, status.Errorf(codes.Aborted, "commit %s to %s: %v", r.Dataset, r.Table, err)
}

// find returns a dataset.
func (s *Service) find(ref string) (d *put.Dataset, err error) {
	s.Cluster.Look(func(c *put.Catalog) { d, err = c.Find(ref) })
	return d, err
}

func (s *Service) commit(ctx context.Context, r commit.Request) (commit.Result, error) {
	s.Log.Info("commits", "dataset", r.Dataset, "table", r.Table, "mode", r.Mode)
	s.show(r, protocol.CommitStatus{State: protocol.Committing})
	result, err := s.Tables.Commit(ctx, r, func(ctx context.Context, order []byte) ([][]byte, error) { return s.writeFiles(ctx, r, order) })
	if err != nil {
		s.Log.Warn("not committed", "dataset", r.Dataset, "table", r.Table, "reason", err)
		s.show(r, protocol.CommitStatus{State: protocol.CommitFailed, Reason: err.Error()})
		return result, err
	}
	s.show(r, protocol.CommitStatus{State: protocol.CommitDone, Snapshot: result.Snapshot})
	s.Log.Info("committed", "dataset", r.Dataset, "table", r.Table, "snapshot", result.Snapshot, "before", result.Existed)
	return result, nil
}

// show records a commit's state for the head's status, unless the dataset was dropped.
func (s *Service) show(r commit.Request, c protocol.CommitStatus) {
	c.Table = r.Table
	_ = s.Cluster.Change(func(catalog *put.Catalog) error {
		if _, err := catalog.Find(r.Dataset); status.Code(err) != codes.NotFound {
			catalog.Commits[r.Put] = &c
		}
		return nil
	})
}

// writeFiles has all data nodes write the files of a dataset.
func (s *Service) writeFiles(ctx context.Context, r commit.Request, order []byte) (files [][]byte, err error) {
	signed, err := s.Signer.Sign(peer.WriteFiles{Put: r.Put, Fingerprint: r.Fingerprint, Order: order})
	if err != nil {
		return nil, err
	}
	of := make([][][]byte, len(s.Cluster.Nodes()))
	group, ctx := errgroup.WithContext(ctx)
	for node := range of {
		group.Go(func() (err error) {
			of[node], err = s.writeNode(ctx, node, r, []byte(signed))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, each := range of {
		files = append(files, each...)
	}
	return files, nil
}

// writeNode has one data node write its files, and again if it restarts.
func (s *Service) writeNode(ctx context.Context, node int, r commit.Request, signed []byte) ([][]byte, error) {
	for tries := 1; ; tries++ {
		files, err := s.askNode(ctx, s.Cluster.Nodes()[node].Address, signed)
		if err == nil || ctx.Err() != nil {
			return files, err
		}
		_, lost := s.find(r.Dataset)
		switch code := status.Code(err); {
		case status.Code(lost) == codes.NotFound || status.Code(lost) == codes.FailedPrecondition:
			return nil, commit.Refused("%s", status.Convert(lost).Message())
		case tries >= writeTries || code != codes.Unavailable && code != codes.ResourceExhausted && code != codes.Canceled && code != codes.DeadlineExceeded:
			return nil, commit.Refused("%s", status.Convert(err).Message())
		case tries == 1:
			s.Log.Warn("a data node has not written its files; trying again", "node", node, "dataset", r.Dataset, "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// askNode sends an order to a data node, and returns what it says of each file.
func (s *Service) askNode(ctx context.Context, address string, signed []byte) (files [][]byte, err error) {
	conn, err := transport.Dial(address, s.TLS, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled := time.AfterFunc(writeStall, cancel)
	defer stalled.Stop()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, protocol.MethodDoAction)
	if err == nil {
		err = stream.SendMsg(&flight.Action{Type: protocol.PutWrite, Body: signed})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil {
		var result flight.Result
		if err = stream.RecvMsg(&result); err == nil {
			files = append(files, result.GetBody())
			stalled.Reset(writeStall)
		}
	}
	if errors.Is(err, io.EOF) {
		return files, nil
	}
	return nil, err
}
