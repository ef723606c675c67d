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
// none; methods then do nothing. The cluster's mu protects it.
type loadTrace struct {
	load   trace.Span // nil: there is none, or it has ended
	join   trace.Span // until every data node has joined once
	parent string     // names load to the data nodes
}

// start starts the trace and returns a context with its span. It must be called before nodes join.
func (t *loadTrace) start(ctx context.Context, tracer trace.Tracer, table string, nodes int) context.Context {
	if tracer == nil {
		return ctx
	}
	ctx, t.load = tracer.Start(ctx, "load", trace.WithAttributes(attribute.String("datacache.table", table), attribute.Int("datacache.nodes", nodes)))
	_, t.join = tracer.Start(ctx, "wait for data nodes")
	t.parent = tracing.Parent(ctx)
	return ctx
}

// end ends the trace, if it has not ended, with what is loaded.
func (t *loadTrace) end(d *dataset, err error) {
	if t.load == nil {
		return
	}
	if t.join != nil {
		tracing.End(t.join, err)
	}
	if p := d.plan; p != nil {
		var rows, bytes int64
		for i := range d.nodes {
			rows, bytes = rows+d.nodes[i].rows, bytes+d.nodes[i].bytes
		}
		t.load.SetAttributes(attribute.Int64("datacache.rows", rows), attribute.Int("datacache.splits", len(p.splits)),
			attribute.Int64("datacache.bytes", bytes), attribute.Int64("datacache.snapshot", p.dataset.Snapshot))
	}
	tracing.End(t.load, err)
	*t = loadTrace{}
}

// joined ends the span of waiting if every node has joined.
func (t *loadTrace) joined(m members) {
	if t.join == nil || len(m.missing()) > 0 {
		return
	}
	t.join.End()
	t.join = nil
}
