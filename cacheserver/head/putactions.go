// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/put"
)

// putActions are the actions by which clients put datasets.
var putActions = map[string]struct {
	about string
	do    func(s *service, ctx context.Context, body []byte) (any, error)
}{
	protocol.PutBegin:   {"begins to put a dataset", (*service).beginPut},
	protocol.PutStatus:  {"the parts of a put that are there", (*service).putStatus},
	protocol.PutPublish: {"makes the parts of a put a dataset, at once", (*service).publishPut},
	protocol.PutAbort:   {"gives a put up", (*service).abortPut},
	protocol.PutDrop:    {"frees a dataset that was put", (*service).dropDataset},
}

// ListActions lists the actions.
func (s *service) ListActions(e *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	if err := s.Flight.ListActions(e, stream); err != nil || !s.cfg.Puts {
		return err
	}
	for _, name := range []string{protocol.PutBegin, protocol.PutStatus, protocol.PutPublish, protocol.PutAbort, protocol.PutDrop} {
		if err := stream.Send(&flight.ActionType{Type: name, Description: putActions[name].about}); err != nil {
			return err
		}
	}
	return nil
}

// DoAction answers the actions.
func (s *service) DoAction(action *flight.Action, stream flight.FlightService_DoActionServer) error {
	act, ok := putActions[action.GetType()]
	if !ok {
		return s.Flight.DoAction(action, stream)
	}
	if err := s.mayPut(stream.Context()); err != nil {
		return err
	}
	answer, err := act.do(s, stream.Context(), action.GetBody())
	if err != nil {
		return err
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return status.Errorf(codes.Internal, "encode %s: %v", action.GetType(), err)
	}
	return stream.Send(&flight.Result{Body: body})
}

// mayPut returns why a caller may not put datasets.
func (s *service) mayPut(ctx context.Context) error {
	if !s.cfg.Puts {
		return status.Error(codes.PermissionDenied, "this cache takes no datasets from clients: start its head with --puts (env PUTS=true)")
	}
	_, err := s.cfg.Access.Reader(ctx)
	return err
}

func (s *service) beginPut(ctx context.Context, body []byte) (any, error) {
	var b protocol.Begin
	if err := protocol.DecodeBody(protocol.PutBegin, body, &b); err != nil {
		return nil, err
	}
	if b.Recipe != "" && len(b.Schema) == 0 { // it only asks
		s.cluster.mu.Lock()
		defer s.cluster.mu.Unlock()
		return protocol.Begun{Exists: s.cluster.puts.catalog.Made(b.Name, b.Recipe, b.Source)}, nil
	}
	return s.begin(ctx, b)
}

// begin begins a put.
func (s *service) begin(ctx context.Context, b protocol.Begin) (begun protocol.Begun, err error) {
	of, err := newPut(b, s.cfg.Nodes)
	if err != nil {
		return begun, status.Errorf(codes.InvalidArgument, "%s: %v", protocol.PutBegin, err)
	}
	if err := s.hasRoom(b.Bytes, b.Keep == protocol.KeepDisk); err != nil {
		return begun, err
	}
	err = s.cluster.puts.change(func(c *put.Catalog) (err error) {
		begun, err = c.Begin(of, time.Now())
		return err
	})
	if err != nil || begun.Exists != "" {
		return begun, err
	}
	begun.Nodes = s.nodeLocations(ctx)
	begun.Ticket, err = s.signer.Sign(protocol.PutTicket{Put: begun.Put, Parts: of.Parts, Nodes: of.Nodes})
	if !begun.Joined {
		s.cfg.Log.Info("a put begins", "name", of.Name, "put", of.ID, "parts", of.Parts)
	}
	return begun, err
}

// hasRoom returns an error if the data nodes have no memory for so many bytes or, if they are wanted, no disks, or if the cache is not ready.
func (s *service) hasRoom(bytes int64, disk bool) error {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	if _, err := s.cluster.ready(); err != nil {
		return err
	}
	var used, limit int64
	for i := range s.cluster.members {
		if disk && !s.cluster.members[i].disk {
			return status.Errorf(codes.FailedPrecondition, "keep: %q, and data node %d has no folder for it: start the data nodes with --spill-dir (env SPILL_DIR), or leave keep out", protocol.KeepDisk, i)
		}
		memory := s.cluster.members[i].vitals.Memory
		used, limit = used+memory.Used, limit+memory.Limit
	}
	if limit > 0 && bytes > limit-used {
		return status.Errorf(codes.ResourceExhausted, "bytes: %d, and the data nodes have %d of %d left: drop datasets, add data nodes, or give them more memory", bytes, limit-used, limit)
	}
	return nil
}

// nodeLocations are the locations of the data nodes.
func (s *service) nodeLocations(ctx context.Context) []string {
	scheme := s.cfg.Access.Scheme(ctx)
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	nodes := make([]string, len(s.cluster.members))
	for i := range nodes {
		nodes[i] = scheme + "://" + s.cluster.members[i].address
	}
	return nodes
}

func (s *service) putStatus(ctx context.Context, body []byte) (any, error) {
	var ref protocol.PutRef
	if err := protocol.DecodeBody(protocol.PutStatus, body, &ref); err != nil {
		return nil, err
	}
	s.cluster.mu.Lock()
	state, of, err := s.cluster.puts.catalog.Status(ref.Put)
	s.cluster.mu.Unlock()
	if err != nil {
		return nil, err
	}
	state.Nodes = s.nodeLocations(ctx)
	state.Ticket, err = s.signer.Sign(protocol.PutTicket{Put: of.ID, Parts: of.Parts, Nodes: of.Nodes})
	return state, err
}

func (s *service) publishPut(ctx context.Context, body []byte) (any, error) {
	var p protocol.Publish
	if err := protocol.DecodeBody(protocol.PutPublish, body, &p); err != nil {
		return nil, err
	}
	var parts []protocol.PutPart
	if p.Receipts != nil {
		parts = make([]protocol.PutPart, len(p.Receipts))
	}
	for i, signed := range p.Receipts {
		var r protocol.Receipt
		if err := s.signer.Open(signed, &r); err != nil {
			return nil, status.Errorf(status.Code(err), "receipts[%d]: %s", i, status.Convert(err).Message())
		}
		if r.Put != p.Put {
			return nil, status.Errorf(codes.InvalidArgument, "receipts[%d]: of another put, %s", i, r.Put)
		}
		parts[i] = r.PutPart
	}
	if p.Receipts != nil {
		err := s.cluster.puts.change(func(c *put.Catalog) (err error) {
			parts, err = c.Gather(p.Put, p.From, parts)
			return err
		})
		if err != nil || p.More {
			return struct{}{}, err
		}
		parts = slices.SortedFunc(slices.Values(parts), func(a, b protocol.PutPart) int { return a.Part - b.Part })
	}
	return s.publish(ctx, p.Put, parts)
}

// publishTime is how long a publication may take. After that the client can ask again.
const publishTime = 50 * time.Second

// publish publishes parts of a put, and waits until all data nodes have made them readable.
func (s *service) publish(ctx context.Context, id string, parts []protocol.PutPart) (published protocol.Published, err error) {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	if err := s.cluster.puts.change(func(c *put.Catalog) error { return c.Publish(id, parts, time.Now()) }); err != nil {
		return published, err
	}
	for {
		s.cluster.mu.Lock()
		done, changed := false, s.cluster.puts.changed
		published, done, err = s.cluster.puts.catalog.Done(id)
		s.cluster.mu.Unlock()
		if done {
			if err == nil {
				s.cfg.Log.Info("published", "dataset", published.Dataset, "rows", published.Rows)
			}
			return published, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return published, status.Error(codes.Unavailable, "publish: data nodes have not answered yet: ask again")
		}
	}
}

func (s *service) abortPut(_ context.Context, body []byte) (any, error) {
	var ref protocol.PutRef
	if err := protocol.DecodeBody(protocol.PutAbort, body, &ref); err != nil {
		return nil, err
	}
	return struct{}{}, s.cluster.puts.change(func(c *put.Catalog) error { return c.Abort(ref.Put) })
}

func (s *service) dropDataset(_ context.Context, body []byte) (any, error) {
	var d protocol.Drop
	if err := protocol.DecodeBody(protocol.PutDrop, body, &d); err != nil {
		return nil, err
	}
	return struct{}{}, s.cluster.puts.change(func(c *put.Catalog) error { return c.Drop(d.Dataset) })
}
