// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/tracing"
)

// envResource describes, to the collector, who made a span.
const envResource = "OTEL_RESOURCE_ATTRIBUTES"

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

// addTraces adds to a cache's pod the variables with which the role's container sends traces, and those traces' cache. If the DataCache
// names a collector itself, only the latter is added. podSettingsHash leaves the variables out: running caches are not restarted for them.
func addTraces(pod *corev1.PodSpec, role string, dc *v1alpha1.DataCache, traces map[string]string) {
	at := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == role })
	container := &pod.Containers[at]
	has := func(name string) bool {
		return slices.ContainsFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == name })
	}
	wanted := map[string]string{envResource: fmt.Sprintf("k8s.namespace.name=%s,datacache.cache=%s", dc.Namespace, dc.Name)}
	switch {
	case has("OTEL_EXPORTER_OTLP_ENDPOINT") || has("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
	case len(traces) > 0:
		maps.Copy(wanted, traces)
	default:
		return
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !has(name) {
			container.Env = append(container.Env, variable(name, wanted[name]))
		}
	}
}
