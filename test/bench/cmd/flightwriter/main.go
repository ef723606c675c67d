// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command flightwriter is a plain arrow-go Flight server for benchmarks: it holds Parquet files as record batches in memory and sends
// them with flight.Writer, through a grpc-go server with default options.
//
// The ticket "INDEX/TOTAL" requests one of TOTAL equal runs of batches. When the rows are in memory it prints "ready
// grpc://HOST:PORT".
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/test/bench/internal/pqfiles"
)

// server answers DoGet from immutable batches; it is safe for concurrent use.
type server struct {
	flight.BaseFlightServer
	batches []arrow.RecordBatch
}

// DoGet streams the batches that the ticket names.
func (s *server) DoGet(ticket *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	var index, total int
	if _, err := fmt.Sscanf(string(ticket.GetTicket()), "%d/%d", &index, &total); err != nil || index < 0 || index >= total {
		return status.Errorf(codes.InvalidArgument, "ticket %q: want INDEX/TOTAL", ticket.GetTicket())
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(s.batches[0].Schema()))
	lo, hi := pqfiles.Share(index, total, len(s.batches))
	for _, b := range s.batches[lo:hi] {
		if err := writer.Write(b); err != nil {
			return err
		}
	}
	return writer.Close()
}

func main() {
	var o pqfiles.Options
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	flag.Int64Var(&o.BatchRows, "batch-rows", 65536, "rows of a record batch")
	flag.Parse()
	if err := run(context.Background(), *listen, flag.Args(), o); err != nil {
		fmt.Fprintln(os.Stderr, "flightwriter:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen string, paths []string, o pqfiles.Options) error {
	batches, err := pqfiles.Load(ctx, paths, o)
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	srv := flight.NewServerWithMiddleware(nil)
	if err := srv.Init(listen); err != nil {
		return fmt.Errorf("listen on %s: %w", listen, err)
	}
	srv.RegisterFlightService(&server{batches: batches})
	fmt.Printf("ready grpc://%s\n", srv.Addr())
	return srv.Serve()
}
