// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/wire"
)

// service is the head's side of Arrow Flight. What it does not define answers UNIMPLEMENTED.
type service struct {
	flight.BaseFlightServer
	head *Head
}

// GetFlightInfo says where the rows of a request are.
func (s *service) GetFlightInfo(_ context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return s.info(d)
}

// GetSchema gives the schema of what a request would stream.
func (s *service) GetSchema(_ context.Context, d *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	a, err := s.answer(d)
	if err != nil {
		return nil, err
	}
	return &flight.SchemaResult{Schema: flight.SerializeSchema(a.view.plan.project(a.columns), memory.DefaultAllocator)}, nil
}

// ListFlights gives one entry: the whole dataset as one shard.
func (s *service) ListFlights(_ *flight.Criteria, stream flight.FlightService_ListFlightsServer) error {
	info, err := s.info(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"0", "1"}})
	if err != nil {
		return err
	}
	return stream.Send(info)
}

// Handshake is not there: who may join or read is decided elsewhere. Without this, Flight's base server would
// end the call as if it had succeeded.
func (s *service) Handshake(flight.FlightService_HandshakeServer) error {
	return status.Error(codes.Unimplemented, "Handshake: there is no authentication by handshake")
}

// ListActions gives the one action there is.
func (s *service) ListActions(_ *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	return stream.Send(&flight.ActionType{Type: actionStatus, Description: "the cache's state as JSON, as on /status"})
}

const actionStatus = "status"

// DoAction answers "status" in every state of the cache.
func (s *service) DoAction(action *flight.Action, stream flight.FlightService_DoActionServer) error {
	if action.GetType() != actionStatus {
		return status.Errorf(codes.Unimplemented, "action %.64q: there is only %q", action.GetType(), actionStatus)
	}
	body, err := json.Marshal(s.head.Status())
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	return stream.Send(&flight.Result{Body: body})
}

func (s *service) answer(d *flight.FlightDescriptor) (answer, error) {
	request, err := wire.ParseDescriptor(d)
	if err != nil {
		return answer{}, err
	}
	v, err := s.head.cluster.view()
	if err != nil {
		return answer{}, err
	}
	return v.answer(request)
}

func (s *service) info(d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	a, err := s.answer(d)
	if err != nil {
		return nil, err
	}
	return a.info(d, s.head.sealer, s.head.cfg.TLS.Scheme(), time.Now(), s.head.cfg.TicketTTL)
}
