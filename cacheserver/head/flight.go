// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/head/packing"
	"github.com/kubeflow/datacache/cacheserver/head/puts"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/cacheserver/work"
)

// service is the head's Flight service. Methods that it does not define return UNIMPLEMENTED.
type service struct {
	transport.Flight
	cfg     *Config
	cluster *cluster
	sealer  protocol.Sealer
	checks  *work.Pool          // of filters
	room    *semaphore.Weighted // for answers, in bytes
	windows *packing.Windows
	puts    puts.Service
}

// GetFlightInfo returns the endpoints with the rows of a request.
func (s *service) GetFlightInfo(ctx context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return s.info(ctx, d)
}

// GetSchema returns the schema of the rows of a request. It checks a filter, but does not wait for the nodes to evaluate it.
func (s *service) GetSchema(ctx context.Context, d *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	request, v, err := s.open(ctx, d)
	if err != nil {
		return nil, err
	}
	if _, err := s.check(ctx, v, request); err != nil {
		return nil, err
	}
	if err := s.turn(ctx, len(d.GetCmd()), v); err != nil {
		return nil, err
	}
	if request.Kind == protocol.Pack {
		return &flight.SchemaResult{Schema: flight.SerializeSchema(packsSchema, memory.DefaultAllocator)}, nil
	}
	if request.Filter == "" {
		if v, err = s.choose(ctx, v, request); err != nil {
			return nil, err
		}
		a, err := v.answer(request)
		if err != nil {
			return nil, err
		}
		return &flight.SchemaResult{Schema: v.plan.schemaBytes(a.columns)}, nil
	}
	columns, err := v.plan.columns(request.Columns)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &flight.SchemaResult{Schema: v.plan.schemaBytes(columns)}, nil
}

// ListFlights returns an entry for the table, if there is one, and one for each dataset that was put and can be read: all its rows as one shard.
func (s *service) ListFlights(_ *flight.Criteria, stream flight.FlightService_ListFlightsServer) error {
	var all []*flight.FlightDescriptor
	if _, none := s.cfg.Source.(source.None); !none {
		all = append(all, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"0", "1"}})
	}
	for _, d := range s.cluster.puts.list() {
		if d.State == "Ready" {
			all = append(all, &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: fmt.Appendf(nil, `{"v":1,"kind":"shard","index":0,"total":1,"dataset":%q}`, d.Name)})
		}
	}
	for _, d := range all {
		info, err := s.info(stream.Context(), d)
		if err == nil {
			err = stream.Send(info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ListActions lists the actions.
func (s *service) ListActions(e *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	if err := s.Flight.ListActions(e, stream); err != nil {
		return err
	}
	return s.puts.ListActions(stream)
}

// DoAction answers the actions.
func (s *service) DoAction(action *flight.Action, stream flight.FlightService_DoActionServer) error {
	if puts.Handles(action.GetType()) {
		return s.puts.DoAction(action, stream)
	}
	return s.Flight.DoAction(action, stream)
}

// DoPut makes a dataset of the rows of one stream.
func (s *service) DoPut(stream flight.FlightService_DoPutServer) error { return s.puts.DoPut(stream) }

// open checks who asks, parses a descriptor, and returns the view of a ready cache to answer it from.
func (s *service) open(ctx context.Context, d *flight.FlightDescriptor) (protocol.Request, *view, error) {
	who, err := s.cfg.Access.Reader(ctx)
	if err != nil {
		return protocol.Request{}, nil, err
	}
	request, err := protocol.ParseDescriptor(d)
	if err != nil {
		return request, nil, err
	}
	v, err := s.view(request.Dataset, request.Early && request.Filter == "")
	return request.By(who), v, err
}

// info answers a request, once its filter, if it has one, is evaluated and there is room for the answer.
func (s *service) info(ctx context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	request, v, err := s.open(ctx, d)
	if err != nil {
		return nil, err
	}
	if v, err = s.choose(ctx, v, request); err != nil {
		return nil, err
	}
	if err := s.turn(ctx, len(d.GetCmd()), v); err != nil {
		return nil, err
	}
	if request.Kind == protocol.Pack {
		if request.Reader != nil {
			s.cfg.Access.Asked(ctx, request, v.rows)
		}
		return s.packsInfo(ctx, v, request, d)
	}
	a, err := v.answer(request)
	if err != nil {
		return nil, err
	}
	if request.Reader != nil {
		s.cfg.Access.Asked(ctx, request, a.records)
	}
	return a.info(d, s.sealer, s.cfg.Access.Scheme(ctx), time.Now(), s.cfg.TicketTTL)
}
