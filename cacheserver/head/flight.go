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

// service is the head's side of Arrow Flight. What it does not define answers UNIMPLEMENTED.
type service struct {
	transport.Flight
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
	return &flight.SchemaResult{Schema: a.view.plan.schemaBytes(a.columns)}, nil
}

// ListFlights gives one entry: the whole dataset as one shard.
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
