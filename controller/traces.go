// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeflow/datacache/internal/tracing"
)

// traced makes a span of every reconciliation of its reconciler.
type traced struct {
	reconcile.Reconciler
	tracer trace.Tracer
	kind   string // of the objects
}

// withTraces returns a reconciler of objects of a kind that makes spans; r itself if tracer is nil.
func withTraces(tracer trace.Tracer, kind string, r reconcile.Reconciler) reconcile.Reconciler {
	if tracer == nil {
		return r
	}
	return &traced{r, tracer, kind}
}

// Reconcile implements reconcile.Reconciler.
func (t *traced) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, span := t.tracer.Start(ctx, "reconcile "+t.kind, trace.WithAttributes(
		attribute.String("k8s.namespace.name", request.Namespace), attribute.String("datacache.name", request.Name)))
	result, err := t.Reconciler.Reconcile(ctx, request)
	if result.RequeueAfter > 0 {
		span.SetAttributes(attribute.Float64("datacache.requeue_seconds", result.RequeueAfter.Seconds()))
	}
	tracing.End(span, err)
	return result, err
}
