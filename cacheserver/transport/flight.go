// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"encoding/json"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/flight"
	flightpb "github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/redact"
)

// RegisterFlight has the service answered by the server. (flight.RegisterFlightServiceServer takes grpc-go's alone.)
func RegisterFlight(server grpc.ServiceRegistrar, service flight.FlightServer) {
	server.RegisterService(&flightpb.FlightService_ServiceDesc, service)
}

// Flight is what head and data nodes answer alike: the action "status", in every state, and UNIMPLEMENTED to
// all that the embedding service does not define.
type Flight struct {
	flight.BaseFlightServer
	// Status gives the value behind the action, as on /status; it must have a JSON form.
	Status func() any
}

// Handshake is not needed: arrow-go's own would end as if it had succeeded.
func (*Flight) Handshake(flight.FlightService_HandshakeServer) error {
	return status.Error(codes.Unimplemented, "no handshake: this server asks for no credentials")
}

const actionStatus = "status"

// ListActions gives the one action there is.
func (*Flight) ListActions(_ *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	return stream.Send(&flight.ActionType{Type: actionStatus, Description: "the server's state as JSON, as on /status"})
}

// DoAction answers "status".
func (f *Flight) DoAction(action *flight.Action, stream flight.FlightService_DoActionServer) error {
	if action.GetType() != actionStatus {
		return status.Errorf(codes.Unimplemented, "action %.64q: there is only %q", action.GetType(), actionStatus)
	}
	body, err := json.Marshal(f.Status())
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	return stream.Send(&flight.Result{Body: []byte(redact.Text(string(body)))})
}
