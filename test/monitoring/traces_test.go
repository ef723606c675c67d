// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/otlptest"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

const (
	traceID  = "4bf92f3577b34da6a3ce929d0e0e4736"
	callerID = "00f067aa0ba902b7"
)

// TestTraces loads a table from a slow store with a head and two data nodes, reads an epoch of it as one rank of two, and checks every
// span that a real collector got.
func TestTraces(t *testing.T) {
	store := s3test.Start(t)
	table := icetest.OnS3(t, store, "lake").Plain("events", 2, 4, 5000, 1000)
	store.Inject(s3test.Match{Key: "/data/"}, s3test.Trickle(100<<10)) // the load takes some seconds
	collector := otlptest.Start(t)
	server := serve(t, append(store.Env(), "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_EXPORTER_OTLP_HEADERS=api-key=sesame",
		"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test"), table.Metadata())
	rows := server.epoch(t, "00-"+traceID+"-"+callerID+"-01")
	server.exit(t)

	spans := treeOf(collector)
	if got := collector.Headers()[0].Get("Api-Key"); got != "sesame" {
		t.Errorf("the collector got the header api-key: %q, want sesame", got)
	}
	load := spans.only(t, "load")
	if load.Parent != "" || load.Error != "" || load.Attributes["datacache.rows"] != int64(20000) || load.Attributes["datacache.splits"] != int64(20) {
		t.Errorf("load: %+v, want the root of a trace, with 20000 rows and 20 splits", load)
	}
	if r := load.Resource; r["service.name"] != "datacache-local" || r["deployment.environment.name"] != "test" || r["host.name"] == "" {
		t.Errorf("resource: %v", r)
	}
	spans.below(t, load, map[string]int{"plan": 1, "wait for data nodes": 1, "load part": 2})
	spans.below(t, spans.only(t, "plan"), map[string]int{"metadata": 1, "manifests": 1, "footers": 1})
	splits := 0
	for _, part := range spans["load part"] {
		n := int(part.Attributes["datacache.splits"].(int64))
		splits += n
		spans.below(t, part, map[string]int{"open": 1, "split": n, "free memory": 1})
	}
	if splits != 20 || total(spans["split"], "datacache.rows") != 20000 {
		t.Errorf("%d splits with %d rows have spans, want 20 with 20000", splits, total(spans["split"], "datacache.rows"))
	}
	for _, split := range spans["split"] {
		spans.below(t, split, map[string]int{"fetch": 1, "decode": 1, "copy": 1})
	}
	part := spans.covered(load)
	t.Logf("the spans below load cover %.1f %% of %s", 100*part, load.End.Sub(load.Begin))
	if part < 0.9 {
		t.Error("want 90 %")
	}
	checkStreams(t, spans["stream"], rows)
	for _, s := range slices.Concat(spans["load"], spans["split"], spans["stream"]) {
		if s.End.Before(s.Begin) {
			t.Errorf("%s ends before it begins", s.Name)
		}
	}
}

// checkStreams checks the spans of one stream from each data node.
func checkStreams(t *testing.T, streams []otlptest.Span, rows int64) {
	t.Helper()
	if len(streams) != 2 || total(streams, "datacache.rows") != rows {
		t.Errorf("%d streams have spans, with %d rows, want 2 with %d", len(streams), total(streams, "datacache.rows"), rows)
	}
	for _, s := range streams {
		if s.Trace != traceID || s.Parent != callerID || s.Error != "" {
			t.Errorf("a stream is in trace %s below %s (error %q), want the client's", s.Trace, s.Parent, s.Error)
		}
		a := s.Attributes
		if a["datacache.job"] != "trial-7" || a["datacache.rank"] != int64(1) || a["datacache.world"] != int64(2) || a["datacache.kind"] != "epoch" || a["client.address"] != "127.0.0.1" {
			t.Errorf("attributes of a stream: %v", a)
		}
		client, _ := a["datacache.wait_client_seconds"].(float64)
		node, _ := a["datacache.wait_node_seconds"].(float64)
		if most := s.End.Sub(s.Begin).Seconds(); client <= 0 || node <= 0 || client > most || node > most {
			t.Errorf("a stream of %s waited %v s for its client and %v s for the data node", s.End.Sub(s.Begin), client, node)
		}
		if bytes, _ := a["datacache.bytes"].(int64); bytes < 1000 {
			t.Errorf("a stream of %d bytes", bytes)
		}
	}
}

// TestTracesOverGRPC checks the other protocol, and that a failed load says why.
func TestTracesOverGRPC(t *testing.T) {
	store := s3test.Start(t)
	table := icetest.OnS3(t, store, "lake").Plain("events", 2, 1, 100, 100)
	store.Inject(s3test.Match{Key: "/data/"}, s3test.Deny())
	collector := otlptest.Start(t)
	p := proctest.Start(t, "local", append(environment(t, store.Env()...), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+collector.GRPC, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"OTEL_BSP_SCHEDULE_DELAY=10"), cacheserver, arguments(table.Metadata())...)
	deadline.Eventually(t, func() error {
		p.Alive()
		for _, s := range collector.Spans() {
			if s.Name == "load" {
				return nil
			}
		}
		return errors.New("the collector has no span load")
	})
	spans := treeOf(collector)
	for _, name := range []string{"load", "plan", "footers"} {
		if got := spans.only(t, name).Error; !strings.Contains(got, "AccessDenied") && !strings.Contains(got, "denied") {
			t.Errorf("%s ended with %q, want the store's refusal", name, got)
		}
	}
}

// TestNoTraces checks that nothing is sent unless the environment names a collector and leaves traces on, and that a server works and
// stops in time without a collector that answers.
func TestNoTraces(t *testing.T) {
	collector := otlptest.Start(t)
	table := icetest.Local(t).Plain("events", 2, 2, 1000, 500)
	for name, env := range map[string][]string{
		"no collector is named": {"OTEL_SERVICE_NAME=cache"},
		"the SDK is off":        {"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_SDK_DISABLED=true"},
		"no traces":             {"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_TRACES_EXPORTER=none"},
		"no sample":             {"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_TRACES_SAMPLER=always_off"},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, env, table.Metadata())
			server.epoch(t, "")
			server.exit(t)
			if n := len(collector.Spans()); n > 0 {
				t.Errorf("the collector got %d spans", n)
			}
		})
	}
	t.Run("no answer", func(t *testing.T) {
		silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts connections and never answers
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { silent.Close() })
		server := serve(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + silent.Addr().String(), "OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_BSP_EXPORT_TIMEOUT=300"}, table.Metadata())
		server.epoch(t, "")
		deadline.Eventually(t, func() error {
			if !strings.Contains(server.process.Output.String(), "traces are lost") {
				return errors.New("the log does not say that traces are lost")
			}
			return nil
		})
		server.epoch(t, "")
		server.exit(t)
		if n := strings.Count(server.process.Output.String(), "traces are lost"); n != 1 {
			t.Errorf("the log says %d times that traces are lost, want once", n)
		}
	})
	for env, want := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318":  `OTEL_EXPORTER_OTLP_ENDPOINT: "collector:4318", want a URL`,
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/json":       `OTEL_EXPORTER_OTLP_PROTOCOL: "http/json", want http/protobuf or grpc`,
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=carriers": `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: "carriers", want`,
		"OTEL_TRACES_EXPORTER=zipkin":                 `OTEL_TRACES_EXPORTER: "zipkin", want otlp or none`,
	} {
		p := proctest.Start(t, "local", environment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, env), cacheserver, arguments(table.Metadata())...)
		if code := p.Exit(); code != 1 || !strings.Contains(p.Output.String(), want) {
			t.Errorf("%s: exit code %d and %q, want 1 and %q", env, code, p.Output, want)
		}
	}
}

// server is a running cache of two data nodes.
type server struct {
	process *proctest.Process
	head    string // host:port
}

func environment(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, more...)
}

func arguments(metadata string) []string {
	return []string{"local", "--nodes", "2", "--metadata", metadata, "--listen", "127.0.0.1:0", "--http", "", "--memory-limit", "256Mi"}
}

// serve runs a cache with a table until the end of the test, and waits until it is Ready.
func serve(t *testing.T, env []string, metadata string) server {
	t.Helper()
	p := proctest.Start(t, "local", environment(t, env...), cacheserver, arguments(metadata)...)
	s := server{process: p}
	deadline.Eventually(t, func() error {
		p.Alive()
		_, line, _ := strings.Cut("\n"+p.Output.String(), "\nready grpc://")
		line, _, whole := strings.Cut(line, "\n")
		if !whole {
			return errors.New(`no line "ready"`)
		}
		s.head, _, _ = strings.Cut(line, " ")
		return nil
	})
	return s
}

// exit ends the server as a kubelet does.
func (s server) exit(t *testing.T) {
	t.Helper()
	s.process.Signal(syscall.SIGTERM)
	if code := s.process.Exit(); code != 0 {
		t.Errorf("the server exits with %d", code)
	}
}

// epoch reads what the second rank of two gets in an epoch, and returns the number of rows. caller is the client's span, "" for none.
func (s server) epoch(t *testing.T, caller string) int64 {
	t.Helper()
	ctx := t.Context()
	if caller != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", caller)
	}
	command := `{"v":1,"kind":"epoch","seed":1,"epoch":0,"shuffle":true,"global_batch":64,"tail":"pad","rank":1,"world":2,"job":"trial-7"}`
	info, err := dial(t, s.head).GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range info.Endpoint {
		if err := drain(ctx, dial(t, strings.TrimPrefix(e.Location[0].Uri, "grpc://")), e.Ticket); err != nil {
			t.Fatal(err)
		}
	}
	return info.TotalRecords
}

func dial(t *testing.T, address string) flight.Client {
	t.Helper()
	c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func drain(ctx context.Context, from flight.Client, ticket *flight.Ticket) error {
	stream, err := from.DoGet(ctx, ticket)
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// tree has the spans of a collector, by name.
type tree map[string][]otlptest.Span

func treeOf(c *otlptest.Collector) tree {
	all := tree{}
	for _, s := range c.Spans() {
		all[s.Name] = append(all[s.Name], s)
	}
	return all
}

// only returns the only span with the name.
func (all tree) only(t *testing.T, name string) otlptest.Span {
	t.Helper()
	if n := len(all[name]); n != 1 {
		t.Fatalf("%d spans are named %q, want 1", n, name)
	}
	return all[name][0]
}

func (all tree) children(parent otlptest.Span) []otlptest.Span {
	var found []otlptest.Span
	for _, spans := range all {
		for _, s := range spans {
			if s.Trace == parent.Trace && s.Parent == parent.ID {
				found = append(found, s)
			}
		}
	}
	return found
}

// below checks how many children of each name a span has.
func (all tree) below(t *testing.T, parent otlptest.Span, want map[string]int) {
	t.Helper()
	got := map[string]int{}
	for _, s := range all.children(parent) {
		got[s.Name]++
	}
	if !maps.Equal(got, want) {
		t.Errorf("below %s are %v, want %v", parent.Name, got, want)
	}
}

// covered returns the part of a span's time in which it has a descendant without children.
func (all tree) covered(parent otlptest.Span) float64 {
	var leaves []otlptest.Span
	var collect func(otlptest.Span)
	collect = func(s otlptest.Span) {
		children := all.children(s)
		if len(children) == 0 {
			leaves = append(leaves, s)
		}
		for _, child := range children {
			collect(child)
		}
	}
	collect(parent)
	slices.SortFunc(leaves, func(a, b otlptest.Span) int { return a.Begin.Compare(b.Begin) })
	var sum time.Duration
	for at := parent.Begin; len(leaves) > 0; leaves = leaves[1:] {
		begin, end := leaves[0].Begin, leaves[0].End
		if begin.Before(at) {
			begin = at
		}
		if end.After(begin) {
			sum, at = sum+end.Sub(begin), end
		}
	}
	return float64(sum) / float64(parent.End.Sub(parent.Begin))
}

func total(spans []otlptest.Span, attribute string) (sum int64) {
	for _, s := range spans {
		n, _ := s.Attributes[attribute].(int64)
		sum += n
	}
	return sum
}
