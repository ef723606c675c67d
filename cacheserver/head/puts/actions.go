// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package puts

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/put"
	"github.com/kubeflow/datacache/cacheserver/put/incoming"
	"github.com/kubeflow/datacache/internal/identity"
)

// action is one by which clients put datasets.
type action struct {
	about string
	do    func(s *Service, ctx context.Context, body []byte) (any, error)
}

// names are those of actions, in the order in which they are listed.
var names = []string{protocol.PutBegin, protocol.PutStatus, protocol.PutPublish, protocol.PutAbort, protocol.PutDrop, protocol.PutCommit}

var actions = map[string]action{
	protocol.PutBegin:   {"begins to put a dataset", (*Service).beginPut},
	protocol.PutStatus:  {"the parts of a put that are there", (*Service).putStatus},
	protocol.PutPublish: {"makes the parts of a put a dataset, at once", (*Service).publishPut},
	protocol.PutAbort:   {"gives a put up", (*Service).abortPut},
	protocol.PutDrop:    {"frees a dataset that was put", (*Service).dropDataset},
	protocol.PutCommit:  {"commits a dataset to a table, as one snapshot", (*Service).commitDataset},
}

// Handles reports whether DoAction answers actions of a name.
func Handles(name string) bool { return actions[name].do != nil }

// ListActions lists the actions, if clients may put datasets.
func (s *Service) ListActions(stream flight.FlightService_ListActionsServer) error {
	if !s.Enabled {
		return nil
	}
	for _, name := range names {
		if err := stream.Send(&flight.ActionType{Type: name, Description: actions[name].about}); err != nil {
			return err
		}
	}
	return nil
}

// DoAction answers an action that the package handles.
func (s *Service) DoAction(asked *flight.Action, stream flight.FlightService_DoActionServer) error {
	if err := s.mayPut(stream.Context()); err != nil {
		return err
	}
	answer, err := actions[asked.GetType()].do(s, stream.Context(), asked.GetBody())
	if err != nil {
		return err
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return status.Errorf(codes.Internal, "encode %s: %v", asked.GetType(), err)
	}
	return stream.Send(&flight.Result{Body: body})
}

// mayPut returns why a caller may not put datasets.
func (s *Service) mayPut(ctx context.Context) error {
	if !s.Enabled {
		return status.Error(codes.PermissionDenied, "this cache takes no datasets from clients: start its head with --puts (env PUTS=true)")
	}
	_, err := s.Access.Writer(ctx)
	return err
}

func (s *Service) beginPut(ctx context.Context, body []byte) (any, error) {
	var b protocol.Begin
	if err := protocol.DecodeBody(protocol.PutBegin, body, &b); err != nil {
		return nil, err
	}
	if b.Recipe != "" && len(b.Schema) == 0 { // it only asks
		var begun protocol.Begun
		s.Cluster.Look(func(c *put.Catalog) { begun.Exists = c.Made(b.Name, b.Recipe, b.Source) })
		return begun, nil
	}
	return s.begin(ctx, b)
}

// begin begins a put.
func (s *Service) begin(ctx context.Context, b protocol.Begin) (begun protocol.Begun, err error) {
	b.Keep = cmp.Or(b.Keep, s.Keep)
	of, err := s.parse(b)
	if err != nil {
		return begun, err
	}
	who, err := s.Access.Writer(ctx)
	if err != nil {
		return begun, err
	}
	if who != nil {
		of.Writer = identity.Identity{Namespace: who.Namespace, Account: who.Account}.Name()
	}
	bytes := b.Bytes
	if b.Keep == protocol.KeepReplica {
		bytes *= 2
	}
	if err := s.hasRoom(bytes, of); err != nil {
		return begun, err
	}
	err = s.Cluster.Change(func(c *put.Catalog) (err error) {
		begun, err = c.Begin(of, time.Now())
		return err
	})
	if err != nil || begun.Exists != "" {
		return begun, err
	}
	if begun.Joined {
		s.Cluster.Look(func(c *put.Catalog) { _, of, err = c.Status(begun.Put, 0, 1) })
	} else {
		s.Log.Info("a put begins", "name", of.Name, "put", of.ID, "parts", of.Parts)
	}
	if err == nil {
		begun.Nodes = s.locations(ctx)
		begun.Ticket, err = s.ticket(ctx, of)
	}
	return begun, err
}

// parse returns the put that a client asks for. Errors are gRPC statuses.
func (s *Service) parse(b protocol.Begin) (peer.Put, error) {
	s.parsing.Lock()
	defer s.parsing.Unlock()
	memory, err := incoming.Memory(b.Schema)
	if err != nil {
		return peer.Put{}, status.Errorf(codes.InvalidArgument, "%s: %v", protocol.PutBegin, err)
	}
	if err := s.Memory.Extend(memory); err != nil {
		return peer.Put{}, status.Errorf(codes.ResourceExhausted, "%s: schema: %v", protocol.PutBegin, err)
	}
	defer s.Memory.Release(memory)
	of, err := incoming.New(b, len(s.Cluster.Nodes()))
	if err != nil {
		return peer.Put{}, status.Errorf(codes.InvalidArgument, "%s: %v", protocol.PutBegin, err)
	}
	return of, nil
}

// ticket returns the ticket of a put, for the caller.
func (s *Service) ticket(ctx context.Context, of peer.Put) (string, error) {
	who, err := s.Access.Writer(ctx)
	if err != nil {
		return "", err
	}
	t := protocol.PutTicket{Put: of.ID, Parts: of.Parts, Nodes: of.Nodes, Writer: who}
	if of.Keep == protocol.KeepReplica {
		for _, node := range s.Cluster.Nodes() {
			t.Addresses = append(t.Addresses, node.Address)
		}
	}
	return s.Signer.Sign(t)
}

// hasRoom returns an error if the cache is not ready, if the data nodes' memory for puts or the limit of the put's writer leaves no room for so many
// bytes, or if the put wants files and a data node has no folder for them.
func (s *Service) hasRoom(bytes int64, of peer.Put) error {
	if err := s.Cluster.Ready(); err != nil {
		return err
	}
	var left, limit, most int64
	for i, node := range s.Cluster.Nodes() {
		if of.Keep == protocol.KeepDisk && !node.Disk {
			return status.Errorf(codes.FailedPrecondition, "keep: %q, and data node %d has no folder for it: start the data nodes with --spill-dir (env SPILL_DIR), or leave keep out", protocol.KeepDisk, i)
		}
		left += min(node.Memory.Limit-node.Memory.Used, node.Puts.Limit-node.Puts.Used)
		limit += node.Puts.Limit
		most += node.Writer
	}
	if limit > 0 && bytes > left {
		return status.Errorf(codes.ResourceExhausted, "bytes: %d, and the data nodes have %d of %d left: drop datasets, add data nodes, or give them more memory or a higher --put-limit", bytes, left, limit)
	}
	var used int64
	s.Cluster.Look(func(c *put.Catalog) { used = put.Used(c, of.Writer) })
	if most > 0 && bytes > most-used {
		return status.Errorf(codes.ResourceExhausted, "bytes: %d, and the data nodes have %d of %d: %s", bytes, used, most, of.MoreForWriter())
	}
	return nil
}

// locations are those of the data nodes.
func (s *Service) locations(ctx context.Context) []string {
	scheme := s.Access.Scheme(ctx)
	var at []string
	for _, node := range s.Cluster.Nodes() {
		at = append(at, scheme+"://"+node.Address)
	}
	return at
}

// statusMemory is the memory of a part in an answer to PutStatus while it is made and sent, measured.
const statusMemory = 400

// reserve reserves memory until a call, whose context is ctx, ends.
func (s *Service) reserve(ctx context.Context, bytes int64) error {
	if err := s.Memory.Extend(bytes); err != nil {
		return status.Errorf(codes.ResourceExhausted, "%v: ask again later, for the status of a put in pages, by most", err)
	}
	context.AfterFunc(ctx, func() { s.Memory.Release(bytes) })
	return nil
}

func (s *Service) putStatus(ctx context.Context, body []byte) (any, error) {
	var page protocol.PutPage
	if err := protocol.DecodeBody(protocol.PutStatus, body, &page); err != nil {
		return nil, err
	}
	if page.From < 0 || page.From > protocol.MostParts || page.Most < 0 || page.Most > protocol.MostPage {
		return nil, status.Errorf(codes.InvalidArgument, "%s: from, most: %d and %d, want a part and at most %d parts", protocol.PutStatus, page.From, page.Most, protocol.MostPage)
	}
	var state protocol.PutState
	var of peer.Put
	var err error
	s.Cluster.Look(func(c *put.Catalog) {
		parts := put.Parts(c, page.Put)
		if page.Most > 0 {
			parts = min(parts, page.Most)
		}
		if err = s.reserve(ctx, int64(parts)*statusMemory); err == nil {
			state, of, err = c.Status(page.Put, page.From, page.Most)
		}
	})
	if err != nil {
		return nil, err
	}
	state.Nodes = s.locations(ctx)
	state.Ticket, err = s.ticket(ctx, of)
	return state, err
}

func (s *Service) publishPut(ctx context.Context, body []byte) (any, error) {
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
		if err := s.Signer.Open(signed, &r); err != nil {
			return nil, status.Errorf(status.Code(err), "receipts[%d]: %s", i, status.Convert(err).Message())
		}
		if r.Put != p.Put {
			return nil, status.Errorf(codes.InvalidArgument, "receipts[%d]: of another put, %s", i, r.Put)
		}
		parts[i] = r.PutPart
	}
	if p.Receipts != nil {
		err := s.Cluster.Change(func(c *put.Catalog) (err error) {
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
func (s *Service) publish(ctx context.Context, id string, parts []protocol.PutPart) (published protocol.Published, err error) {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	if err := s.Cluster.Change(func(c *put.Catalog) error { return c.Publish(id, parts, time.Now()) }); err != nil {
		return published, err
	}
	for {
		var done bool
		changed := s.Cluster.Look(func(c *put.Catalog) { published, done, err = c.Done(id) })
		if done {
			if err == nil {
				s.Log.Info("published", "dataset", published.Dataset, "rows", published.Rows)
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

func (s *Service) abortPut(_ context.Context, body []byte) (any, error) {
	var ref protocol.PutRef
	if err := protocol.DecodeBody(protocol.PutAbort, body, &ref); err != nil {
		return nil, err
	}
	return struct{}{}, s.Cluster.Change(func(c *put.Catalog) error { return c.Abort(ref.Put) })
}

// dropTime is how long a call waits for the data nodes to free a dataset. The client may repeat the call.
const dropTime = 20 * time.Second

// dropDataset drops a dataset, and waits until all data nodes have freed it.
func (s *Service) dropDataset(ctx context.Context, body []byte) (any, error) {
	var d protocol.Drop
	if err := protocol.DecodeBody(protocol.PutDrop, body, &d); err != nil {
		return nil, err
	}
	if err := s.Cluster.Change(func(c *put.Catalog) error { return c.Drop(d.Dataset) }); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dropTime)
	defer cancel()
	for {
		var left string
		changed := s.Cluster.Look(func(c *put.Catalog) { left = put.Freeing(c, d.Dataset) })
		if left == "" {
			return struct{}{}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.Errorf(codes.Unavailable, "drop: data node %s has not freed dataset %s yet: drop it again", left, d.Dataset)
		}
	}
}
