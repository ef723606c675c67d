// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// queue is the parts of a put that another data node should have too. The stage's mu protects it.
type queue struct {
	address string // of the other node
	parts   []protocol.PutPart
	running bool
}

const (
	copyFirst = 200 * time.Millisecond // pause after a part could not be copied, which doubles each time
	copyMost  = 5 * time.Second
)

// Copy sends parts to another data node, in the background, until they are there, the put has ended or the head has been lost.
func (s *Stage) Copy(m peer.Copy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.puts[m.ID]
	if p == nil {
		return
	}
	q := p.queues[m.To]
	if q == nil {
		q = &queue{}
		p.queues[m.To] = q
	}
	q.address, q.parts = m.Address, append(q.parts, m.Parts...)
	if !q.running {
		q.running = true
		go s.copyAll(p, q)
	}
}

// copyAll sends what is in a queue.
func (s *Stage) copyAll(p *put, q *queue) {
	wait := copyFirst
	for {
		made, of, address := s.nextCopy(p, q)
		if made == nil {
			return
		}
		err := s.neighbours.send(p.ended, p, made, address)
		if err == nil {
			wait = copyFirst
			continue
		}
		if p.ended.Err() != nil {
			return
		}
		if wait == copyFirst {
			s.cfg.Log.Warn("a part can't be copied yet", "name", p.Name, "part", of.Part, "to", address, "reason", err)
		}
		s.mu.Lock()
		q.parts = append(q.parts, of)
		s.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-p.ended.Done():
			return
		}
		wait = min(2*wait, copyMost)
	}
}

// nextCopy takes a part from a queue. If there is none, it returns nil and records that nobody works on the queue.
func (s *Stage) nextCopy(p *put, q *queue) (made *part, of protocol.PutPart, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(q.parts) > 0 {
		of, q.parts = q.parts[0], q.parts[1:]
		attempts := p.parts[of.Part]
		if i := slices.IndexFunc(attempts, func(o *part) bool { return o.Hash == of.Hash }); i >= 0 {
			return attempts[i], of, q.address
		}
		s.reportLocked(peer.Staged{ID: p.ID, Absent: []protocol.PutPart{of}})
	}
	q.running = false
	return nil, of, ""
}

// forgetCopiesLocked empties the queues: a head that the node has joined says anew what to send.
func (p *put) forgetCopiesLocked() {
	for _, q := range p.queues {
		q.parts = nil
	}
}

// copied sends a part that was received to the data node that has its copy. Errors are gRPC statuses for the client.
func (s *Stage) copied(ctx context.Context, p *put, made *part, addresses []string) error {
	to := p.Copy(made.Part)
	if to < 0 {
		return nil
	}
	if to >= len(addresses) || addresses[to] == "" {
		return status.Errorf(codes.Unavailable, "put: data node %d, which has the copy of part %d, is not there: try again", to, made.Part)
	}
	err := s.neighbours.send(ctx, p, made, addresses[to])
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.ResourceExhausted:
		return status.Errorf(codes.ResourceExhausted, "the copy on data node %d: %s", to, status.Convert(err).Message())
	}
	return status.Errorf(codes.Unavailable, "put: data node %d did not take the copy of part %d: %s", to, made.Part, status.Convert(err).Message())
}

// neighbours are the connections to other data nodes, which are kept. They are safe for concurrent use.
type neighbours struct {
	cfg *Config

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // by address
}

// send sends a part to another data node, and returns once the head knows that it is there.
func (s *neighbours) send(ctx context.Context, p *put, made *part, address string) error {
	conn, err := s.connect(address)
	if err != nil {
		return err
	}
	all, err := rows.NewRows(p.layout, made.chunks)
	if err != nil {
		return err
	}
	defer all.Release()
	ticket, err := s.cfg.Signer.Sign(protocol.PutTicket{Put: p.ID, Parts: p.Parts, Nodes: p.Nodes, Copy: made.Hash})
	if err != nil {
		return err
	}
	command, err := json.Marshal(protocol.PutCommand{V: protocol.Version, Kind: "put", Ticket: ticket, Part: made.Part, Attempt: made.Attempt})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, protocol.MethodDoPut)
	if err != nil {
		return err
	}
	first := &flight.FlightData{FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command}, DataHeader: p.Schema}
	if err := sendRows(stream, first, p.layout, all); err != nil && !errors.Is(err, io.EOF) { // io.EOF: the node has ended the call, and says why
		return err
	}
	return stream.RecvMsg(&flight.PutResult{})
}

// sendRows sends a first message, rows and their number.
func sendRows(stream grpc.ClientStream, first *flight.FlightData, layout *rows.Layout, all *rows.Rows) error {
	if err := stream.SendMsg(first); err != nil {
		return err
	}
	for m, err := range all.Range(layout.All(), 0, all.Len()) {
		if err != nil {
			return err
		}
		err = stream.SendMsg(&flight.FlightData{DataHeader: m.Header, DataBody: slices.Concat(m.Body...)})
		m.Release()
		if err != nil {
			return err
		}
	}
	if err := stream.SendMsg(&flight.FlightData{AppMetadata: fmt.Appendf(nil, `{"rows":%d}`, all.Len())}); err != nil {
		return err
	}
	return stream.CloseSend()
}

// connect returns the connection to another data node.
func (s *neighbours) connect(address string) (*grpc.ClientConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := s.conns[address]
	if conn == nil {
		var err error
		if conn, err = transport.Dial(address, s.cfg.TLS, s.cfg.Dial); err != nil {
			return nil, err
		}
		s.conns[address] = conn
	}
	conn.ResetConnectBackoff()
	return conn, nil
}

func (s *neighbours) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	clear(s.conns)
}
