// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/internal/tracing"
)

// observer receives what happens to one stream after its start, in the goroutine of the stream's call.
type observer interface {
	// message reports a message that the transport has taken.
	message(m sent)
	// wait reports that the stream has waited.
	wait(of reason, took time.Duration)
	// end reports the end of the stream, and the error that its call returns.
	end(err error)
}

// sent is the size and cost of a message that a stream has sent.
type sent struct {
	rows, bytes int64
	work        time.Duration // time that the node took to make it
}

// reason is what a stream waits for.
type reason int

const (
	forClient reason = iota // the client, or the network, to take a message
	forTurn                 // the stream's turn, while other jobs have theirs
)

// observers passes events on to each of them.
type observers []observer

func (o observers) message(m sent) {
	for _, each := range o {
		each.message(m)
	}
}

func (o observers) wait(of reason, took time.Duration) {
	for _, each := range o {
		each.wait(of, took)
	}
}

func (o observers) end(err error) {
	for _, each := range o {
		each.end(err)
	}
}

// counters count a stream in the metrics.
type counters struct {
	open                          prometheus.Gauge
	rows, bytes, work             prometheus.Counter
	jobBytes, clientWait, jobWait prometheus.Counter
}

func newCounters(m *ops.Metrics, kind, job string) counters {
	m.StreamsOpened.WithLabelValues(kind).Inc()
	c := counters{
		open: m.Streams.WithLabelValues(kind), rows: m.SentRows.WithLabelValues(kind), bytes: m.SentBytes.WithLabelValues(kind),
		work: m.Work.WithLabelValues(kind), clientWait: m.SendWait.WithLabelValues(kind), jobBytes: m.JobBytes.Of(job), jobWait: m.JobWait.Of(job),
	}
	c.open.Inc()
	return c
}

func (c counters) message(m sent) {
	c.rows.Add(float64(m.rows))
	c.bytes.Add(float64(m.bytes))
	c.jobBytes.Add(float64(m.bytes))
	c.work.Add(m.work.Seconds())
}

func (c counters) wait(of reason, took time.Duration) {
	if of == forTurn {
		c.jobWait.Add(took.Seconds())
		return
	}
	c.clientWait.Add(took.Seconds())
}

func (c counters) end(error) { c.open.Dec() }

// share charges a stream's job in the queue of turns.
type share struct{ *fair.Stream }

func (s share) message(m sent)             { s.Sent(m.bytes) }
func (s share) wait(reason, time.Duration) {}
func (s share) end(error)                  { s.Leave() }

// audited writes the lines of a known reader's stream into the audit log.
type audited struct {
	stream *sender
	opened time.Time
	rows   int64
}

func (a *audited) message(m sent)           { a.rows += m.rows }
func (*audited) wait(reason, time.Duration) {}

// end writes that the stream has ended.
func (a *audited) end(err error) {
	a.stream.server.cfg.Access.Ended(a.stream.stream.Context(), a.stream.Ticket, a.rows, time.Since(a.opened), err)
}

// span makes the span of a stream when it ends.
type span struct {
	ctx    context.Context
	tracer trace.Tracer
	node   int
	key    readerKey
	opened time.Time
	total  sent
	waits  [2]time.Duration // by reason
}

func (s *span) message(m sent) {
	s.total.rows += m.rows
	s.total.bytes += m.bytes
	s.total.work += m.work
}

func (s *span) wait(of reason, took time.Duration) { s.waits[of] += took }

// end makes the span, below the client's if it passed one on.
func (s *span) end(err error) {
	ctx := s.ctx
	if values := metadata.ValueFromIncomingContext(ctx, tracing.Header); len(values) == 1 {
		ctx = tracing.WithParent(ctx, values[0])
	}
	_, span := s.tracer.Start(ctx, "stream", trace.WithTimestamp(s.opened), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("datacache.kind", string(s.key.kind)), attribute.String("datacache.job", s.key.job), attribute.String("client.address", s.key.client),
		attribute.Int("datacache.rank", s.key.rank), attribute.Int("datacache.world", s.key.world), attribute.Int("datacache.node", s.node),
		attribute.Int64("datacache.rows", s.total.rows), attribute.Int64("datacache.bytes", s.total.bytes),
		attribute.Float64("datacache.wait_client_seconds", s.waits[forClient].Seconds()), attribute.Float64("datacache.wait_node_seconds", s.total.work.Seconds()),
		attribute.Float64("datacache.wait_turn_seconds", s.waits[forTurn].Seconds())))
	tracing.End(span, err)
}

// observe starts the observers of a stream. The stream's place in the queue of turns is the first of them.
func (srv *Server) observe(s *sender, ticket protocol.Ticket, job string) observers {
	now, key := time.Now(), keyOf(s.stream.Context(), ticket)
	all := observers{share{s.turn}, srv.streams.begin(key, s, now), newCounters(srv.cfg.Metrics, string(ticket.Kind), job)}
	if ticket.Reader != nil && srv.cfg.Access != nil {
		var columns []string
		for _, f := range s.Columns.Schema().Fields() {
			columns = append(columns, f.Name)
		}
		srv.cfg.Access.Opened(s.stream.Context(), ticket, columns)
		all = append(all, &audited{stream: s, opened: now})
	}
	if srv.cfg.Tracer != nil {
		all = append(all, &span{ctx: s.stream.Context(), tracer: srv.cfg.Tracer, node: srv.cfg.Index, key: key, opened: now})
	}
	return all
}
