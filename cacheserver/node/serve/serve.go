// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package serve streams the rows of a data node to clients with a ticket.
package serve

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/sweep"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/cacheserver/transport/shared"
)

// Config configures a server. All fields are required.
type Config struct {
	role.Config
	Index       int           // of the data node, for traces
	Turns       *fair.Queue   // of the streams of this process
	SendTimeout time.Duration // time for a client to read a message before its stream is ended
	// Admit verifies a sealed ticket and lends the rows that it names. Its errors are gRPC statuses.
	Admit func(ctx context.Context, ticket []byte) (Lent, error)
	// Put receives the rows that a client puts. Its errors are gRPC statuses.
	Put func(grpc.ServerStream) error
	// Write answers protocol.PutWrite. Its errors are gRPC statuses.
	Write func(order []byte, stream flight.FlightService_DoActionServer) error
}

// Early has rows of a data node that still loads.
type Early interface {
	// Want says that a stream needs rows at a position of its sequence.
	Want(run rows.Run, position uint64)
	// Rows waits until the rows of runs are loaded. It returns rows with those, which the caller releases, and the runs as these number
	// them. If all is true, the load has ended and the rows are those of the whole node. An error is a status.
	Rows(ctx context.Context, runs []rows.Run) (in *rows.Rows, found []rows.Run, all bool, err error)
}

// Lent is the rows of a ticket in use by one call, which must call Done once.
type Lent struct {
	Rows    *rows.Rows          // nil while they are loaded
	Early   Early               // in their place
	Swept   func() *sweep.Sweep // with Early: what becomes Sweep once all rows are loaded
	Mean    int64               // with Early: an estimate of the bytes of a row
	Columns *rows.Projection    // the ticket's
	Sweep   *sweep.Sweep        // over Rows; nil: they stay in memory
	Index   *pick.Index         // of the ticket's filter; nil: without one
	Ticket  protocol.Ticket
	Calls   *Calls // this one among them
	Done    func()
}

// Server streams rows. Make it with New; it is safe for concurrent use.
type Server struct {
	cfg     Config
	streams streams
	waiting atomic.Int64 // number of streams that wait for memory
	shared  *shared.Server
}

// New returns a server without streams.
func New(cfg Config) *Server {
	srv := &Server{cfg: cfg, shared: shared.New(cfg.Budget.Clients(), cfg.Log)}
	cfg.Access.OnChange(func() { srv.streams.revoke(cfg.Access.Permits) })
	return srv
}

// Flight returns the Flight service; status returns the value of its action "status".
func (srv *Server) Flight(status func() any) flight.FlightServer {
	return &service{Flight: transport.Flight{Status: status, Admit: srv.cfg.Access.Admit()}, server: srv}
}

// Memory bounds what connections and requests hold.
func (srv *Server) Memory() transport.Memory { return memory{srv} }

// Traffic returns what clients read: all of them, and at most most readers.
func (srv *Server) Traffic(most int) (protocol.Traffic, []protocol.Reader) {
	return srv.streams.list(time.Now(), most)
}
