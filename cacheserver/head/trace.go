// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/kubeflow/datacache/internal/tracing"
)

// loadTrace has the spans of the first load: from the start of the head until the cache is Ready or has failed. The zero value has
// none; methods then do nothing.
type loadTrace struct {
	load   trace.Span // nil: there is none, or it has ended
	join   trace.Span // until every data node has joined once
	parent string     // names load to the data nodes
}

// startTrace starts the trace and returns a context with its span. It must be called before nodes join.
func (c *cluster) startTrace(ctx context.Context, tracer trace.Tracer, table string) context.Context {
	if tracer == nil {
		return ctx
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, c.trace.load = tracer.Start(ctx, "load", trace.WithAttributes(attribute.String("datacache.table", table), attribute.Int("datacache.nodes", len(c.members))))
	_, c.trace.join = tracer.Start(ctx, "wait for data nodes")
	c.trace.parent = tracing.Parent(ctx)
	return ctx
}

// endTrace ends the trace, if it has not ended.
func (c *cluster) endTrace(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endTraceLocked(err)
}

func (c *cluster) endTraceLocked(err error) {
	if c.trace.load == nil {
		return
	}
	if c.trace.join != nil {
		tracing.End(c.trace.join, err)
	}
	if p := c.data.plan; p != nil {
		rows, _ := c.data.bounds()
		var bytes int64
		for i := range c.data.nodes {
			bytes += c.data.nodes[i].bytes
		}
		c.trace.load.SetAttributes(attribute.Int64("datacache.rows", rows), attribute.Int("datacache.splits", len(p.Splits)),
			attribute.Int64("datacache.bytes", bytes), attribute.Int64("datacache.snapshot", p.dataset.Snapshot))
	}
	tracing.End(c.trace.load, err)
	c.trace = loadTrace{}
}

// noteJoinedLocked ends the span of waiting if every node has joined.
func (c *cluster) noteJoinedLocked() {
	if c.trace.join == nil {
		return
	}
	for i := range c.members {
		if c.members[i].incarnation == "" {
			return
		}
	}
	c.trace.join.End()
	c.trace.join = nil
}
