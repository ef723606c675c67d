// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// service is the head's Flight service. Methods that it does not define return UNIMPLEMENTED.
type service struct {
	transport.Flight
	head *Head
}

// GetFlightInfo returns the endpoints with the rows of a request.
func (s *service) GetFlightInfo(_ context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	return s.info(d)
}

// GetSchema returns the schema of the rows of a request.
func (s *service) GetSchema(_ context.Context, d *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	a, err := s.answer(d)
	if err != nil {
		return nil, err
	}
	return &flight.SchemaResult{Schema: a.view.plan.schemaBytes(a.columns)}, nil
}

// ListFlights returns one entry: the whole dataset as one shard.
func (s *service) ListFlights(_ *flight.Criteria, stream flight.FlightService_ListFlightsServer) error {
	info, err := s.info(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"0", "1"}})
	if err != nil {
		return err
	}
	return stream.Send(info)
}

func (s *service) answer(d *flight.FlightDescriptor) (answer, error) {
	request, err := protocol.ParseDescriptor(d)
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
