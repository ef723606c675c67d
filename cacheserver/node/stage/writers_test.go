// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/access"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/internal/authority"
	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// receiver is a Flight service that receives parts.
type receiver struct {
	flight.BaseFlightServer
	stage *Stage
	began chan struct{} // has a value for each call
}

func (r *receiver) DoPut(stream flight.FlightService_DoPutServer) error {
	r.began <- struct{}{}
	return r.stage.Receive(stream)
}

// guarded is a data node whose access file can be changed.
type guarded struct {
	t       *testing.T
	guard   *access.Guard
	path    string // of the access file
	signer  protocol.Signer
	service *receiver
	address string
	tls     transport.TLS
}

// serveGuarded serves a stage that knows a put, over TLS and in plain text, to the writers ops/alice and ops/bob.
func serveGuarded(t *testing.T) *guarded {
	t.Helper()
	folder := t.TempDir()
	g := &guarded{t: t, path: filepath.Join(folder, "access.json"), signer: protocol.NewSigner([]byte("key"))}
	certificate, key, err := authority.New("reviews", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	g.tls = transport.TLS{Authority: filepath.Join(folder, "ca.pem"), Plain: true}
	for path, text := range map[string]string{g.tls.Authority: string(authority.Join(certificate, key)), filepath.Join(folder, "tokens"): "a ops/alice\nb ops/bob\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g.rules(`"ops/alice", "ops/bob"`)
	if g.guard, err = access.Open(g.path, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s := New(Config{Node: 1, Budget: offheap.NewBudget(1 << 30), Signer: g.signer, Log: slog.New(slog.DiscardHandler), Gone: func(string) {}, Access: g.guard})
	acknowledge(t, s)
	s.Open(peer.Put{ID: "put-1", Name: "a", Parts: 4, Nodes: 2, Schema: rows.SchemaHeader(schema)})
	g.service = &receiver{stage: s, began: make(chan struct{}, 100)}
	server, err := transport.NewServer(transport.H2, g.tls, offheap.NewBudget(1<<30).Clients(), ops.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	transport.RegisterFlight(server, g.service)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.address = listener.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- transport.Serve(ctx, server, listener, time.Millisecond) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v", err)
		}
		s.Close()
	})
	return g
}

// rules writes an access file with these writers.
func (g *guarded) rules(writers string) {
	g.t.Helper()
	text := fmt.Sprintf(`{"readers": "Known", "tokens": %q, "writers": [%s]}`, filepath.Join(filepath.Dir(g.path), "tokens"), writers)
	if err := os.WriteFile(g.path, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// ticket signs a ticket of the put.
func (g *guarded) ticket(of protocol.PutTicket) string {
	g.t.Helper()
	of.Put, of.Parts, of.Nodes = "put-1", 4, 2
	signed, err := g.signer.Sign(of)
	if err != nil {
		g.t.Fatal(err)
	}
	return signed
}

// begin opens a call and sends it messages.
func (g *guarded) begin(tls transport.TLS, messages [][]byte) grpc.ClientStream {
	g.t.Helper()
	conn, err := transport.Dial(g.address, tls, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { conn.Close() })
	stream, err := conn.NewStream(deadline.Context(g.t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, protocol.MethodDoPut)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, m := range messages {
		raw := protocol.Raw(m)
		_ = stream.SendMsg(&raw) // RecvMsg has the reason if the call has ended
	}
	return stream
}

func who(name string) *identity.Identity { return &identity.Identity{Namespace: "ops", Account: name} }

// put sends a part and returns its result.
func (g *guarded) put(tls transport.TLS, of protocol.PutTicket, part int) (result protocol.PutResult, err error) {
	g.t.Helper()
	stream := g.begin(tls, write(g.t, command(g.ticket(of), part, 1), batch(g.t, 0, 10)))
	_ = stream.CloseSend()
	var answer flight.PutResult
	if err := stream.RecvMsg(&answer); err != nil {
		return result, err
	}
	return result, json.Unmarshal(answer.GetAppMetadata(), &result)
}

// TestTicketsAreOfWriters checks that a data node takes rows only over TLS, and only with the ticket of a writer who may still write, and that it takes
// copies of other data nodes.
func TestTicketsAreOfWriters(t *testing.T) {
	t.Parallel()
	g := serveGuarded(t)
	first, err := g.put(g.tls, protocol.PutTicket{Writer: who("alice")}, 2)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error, code codes.Code, says string) {
		t.Helper()
		if status.Code(err) != code || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s with %q", what, err, code, says)
		}
	}
	_, err = g.put(transport.TLS{}, protocol.PutTicket{Writer: who("alice")}, 2)
	refused("in plain text", err, codes.Unauthenticated, "known readers over TLS")
	_, err = g.put(g.tls, protocol.PutTicket{}, 2)
	refused("a ticket of nobody", err, codes.Unauthenticated, "of no known reader")
	_, err = g.put(g.tls, protocol.PutTicket{Writer: who("carol")}, 2)
	refused("a writer without a token", err, codes.PermissionDenied, "ops/carol may not read this cache")
	g.rules(`"ops/bob"`)
	g.guard.Look()
	_, err = g.put(g.tls, protocol.PutTicket{Writer: who("alice")}, 2)
	refused("a writer who lost the right", err, codes.PermissionDenied, "ops/alice may read this cache and not put datasets")
	if _, err := g.put(g.tls, protocol.PutTicket{Writer: who("bob")}, 2); err != nil {
		t.Errorf("another writer: %v", err)
	}
	if _, err := g.put(g.tls, protocol.PutTicket{Copy: first.Hash}, 0); err != nil {
		t.Errorf("a copy: %v", err)
	}
}

// TestPartsEndWithTheRight takes the right from one of two writers while both send a part: the stream of this one must end with the reason and
// leave nothing, and that of the other one must go on.
func TestPartsEndWithTheRight(t *testing.T) {
	t.Parallel()
	g := serveGuarded(t)
	streams := map[string]grpc.ClientStream{}
	messages := map[string][][]byte{}
	for part, name := range []string{"alice", "bob"} {
		messages[name] = write(t, command(g.ticket(protocol.PutTicket{Writer: who(name)}), 2+part, 1), batch(t, 0, 10))
		streams[name] = g.begin(g.tls, messages[name][:2])
		<-g.service.began
	}
	deadline.Eventually(t, func() error {
		if used := g.service.stage.cfg.Budget.Used(); used < 2*streamMemory {
			return fmt.Errorf("%d bytes are reserved: not both receive rows", used)
		}
		return nil
	})
	g.rules(`"ops/bob"`)
	g.guard.Look()
	if err := streams["alice"].RecvMsg(&flight.PutResult{}); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "not put datasets") {
		t.Errorf("the stream of a writer who lost the right: %v", err)
	}
	last := protocol.Raw(messages["bob"][2])
	if err := errors.Join(streams["bob"].SendMsg(&last), streams["bob"].CloseSend(), streams["bob"].RecvMsg(&flight.PutResult{})); err != nil {
		t.Errorf("the stream of another writer: %v", err)
	}
	if parts := g.service.stage.Inventory()[0].Parts; len(parts) != 1 || parts[0].Part != 3 {
		t.Errorf("the node has the parts %+v, want part 3", parts)
	}
}
