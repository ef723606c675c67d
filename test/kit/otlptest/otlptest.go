// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package otlptest is a collector of OpenTelemetry traces for tests, over HTTP and over gRPC (OTLP 1.x).
package otlptest

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Span is a span that a collector received. IDs are in hexadecimal.
type Span struct {
	Name, Trace, ID string
	Parent          string // "" for the root of a trace
	Begin, End      time.Time
	Error           string         // text of the status; "" unless that is an error
	Attributes      map[string]any // string, int64, float64 or bool
	Resource        map[string]any // likewise, of the process
}

// Collector receives spans. It is safe for concurrent use.
type Collector struct {
	collector.UnimplementedTraceServiceServer

	URL  string // for OTLP over HTTP
	GRPC string // URL for OTLP over gRPC

	mu      sync.Mutex
	spans   []Span
	headers []http.Header
}

// Start starts a collector on loopback, which ends with the test.
func Start(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	web := httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(web.Close)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)
	c.URL, c.GRPC = web.URL, "http://"+listener.Addr().String()
	return c
}

// Spans returns the spans received so far, in order of arrival.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Headers returns the headers of the HTTP requests received so far.
func (c *Collector) Headers() []http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]http.Header(nil), c.headers...)
}

// Export implements the gRPC service.
func (c *Collector) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.add(request, nil)
	return &collector.ExportTraceServiceResponse{}, nil
}

func (c *Collector) serve(w http.ResponseWriter, r *http.Request) {
	request, err := decode(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.add(request, r.Header)
	w.Header().Set("Content-Type", "application/x-protobuf") // of an empty response
}

func decode(r *http.Request) (*collector.ExportTraceServiceRequest, error) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, err
		}
		body = unzipped
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	request := &collector.ExportTraceServiceRequest{}
	return request, proto.Unmarshal(data, request)
}

func (c *Collector) add(request *collector.ExportTraceServiceRequest, header http.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if header != nil {
		c.headers = append(c.headers, header)
	}
	for _, of := range request.GetResourceSpans() {
		resource := values(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, spanOf(s, resource))
			}
		}
	}
}

func spanOf(s *otlp.Span, resource map[string]any) Span {
	span := Span{
		Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Begin: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
		Attributes: values(s.GetAttributes()), Resource: resource,
	}
	if status := s.GetStatus(); status.GetCode() == otlp.Status_STATUS_CODE_ERROR {
		span.Error = status.GetMessage()
	}
	return span
}

func values(attributes []*common.KeyValue) map[string]any {
	out := map[string]any{}
	for _, a := range attributes {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[a.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			out[a.GetKey()] = v.IntValue
		case *common.AnyValue_DoubleValue:
			out[a.GetKey()] = v.DoubleValue
		case *common.AnyValue_BoolValue:
			out[a.GetKey()] = v.BoolValue
		}
	}
	return out
}
