// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/flight"
	flightpb "github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/internal/redact"
)

// RegisterFlight registers the service with the server. (flight.RegisterFlightServiceServer accepts only grpc-go's server.)
func RegisterFlight(server grpc.ServiceRegistrar, service flight.FlightServer) {
	server.RegisterService(&flightpb.FlightService_ServiceDesc, service)
}

// Flight is the part of the Flight service that head and data nodes share: the action "status", which works in every state, and
// UNIMPLEMENTED for everything that the embedding service does not define.
type Flight struct {
	flight.BaseFlightServer
	// Status returns the value that the action and /status send as JSON.
	Status func() any
	// Sizing returns the value that the action "sizing" with a body sends as JSON; nil: there is no such action.
	Sizing func(body []byte) (any, error)
	// Admit returns why a call may not be made; nil: every call may.
	Admit func(ctx context.Context) error
}

// Handshake sends the token of a caller that may read back as a bearer token, as clients expect that log in with a name and a password
// (Basic). Without rules of who may read it returns UNIMPLEMENTED: arrow-go's default would report success.
func (f *Flight) Handshake(stream flight.FlightService_HandshakeServer) error {
	if f.Admit == nil {
		return status.Error(codes.Unimplemented, "no handshake: this server asks for no credentials")
	}
	if err := f.Admit(stream.Context()); err != nil {
		return err
	}
	token, ok := identity.FromHeaders(metadata.ValueFromIncomingContext(stream.Context(), "authorization"))
	if !ok {
		return nil
	}
	return stream.SendHeader(metadata.Pairs("authorization", "Bearer "+token))
}

// The actions.
const actionStatus, actionSizing = "status", "sizing"

// ListActions lists the actions.
func (f *Flight) ListActions(_ *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	err := stream.Send(&flight.ActionType{Type: actionStatus, Description: "the server's state as JSON, as on /status"})
	if err != nil || f.Sizing == nil {
		return err
	}
	return stream.Send(&flight.ActionType{Type: actionSizing, Description: `what the cache takes for {"ranks": N, "rate": bytes a second}, as JSON`})
}

// DoAction answers the actions.
func (f *Flight) DoAction(action *flight.Action, stream flight.FlightService_DoActionServer) error {
	if f.Admit != nil {
		if err := f.Admit(stream.Context()); err != nil {
			return err
		}
	}
	value, err := f.act(action)
	if err != nil {
		return err
	}
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", action.GetType(), err)
	}
	return stream.Send(&flight.Result{Body: []byte(redact.Text(string(body)))})
}

// act returns the answer to an action.
func (f *Flight) act(action *flight.Action) (any, error) {
	switch {
	case action.GetType() == actionStatus:
		return f.Status(), nil
	case action.GetType() == actionSizing && f.Sizing != nil:
		return f.Sizing(action.GetBody())
	}
	return nil, status.Errorf(codes.Unimplemented, "action %.64q: ListActions names those of this server", action.GetType())
}
