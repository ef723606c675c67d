// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/kubeflow/datacache/internal/buildinfo"
	"github.com/kubeflow/datacache/internal/manage"
	"github.com/kubeflow/datacache/internal/tracing"
)

// start sets up logging and returns the configuration of the API server's client.
func (s *serving) start(p parts) (*rest.Config, error) {
	if err := manage.LogTo(os.Stderr, s.logFormat, s.logLevel); err != nil {
		return nil, err
	}
	reach, err := manage.Reach(s.kubeconfig)
	if err != nil {
		return nil, err
	}
	reach.UserAgent = p.manager + "/" + version
	return reach, nil
}

// newManager makes a manager. options have its types and informers. The webhook may be set up when the channel is closed; the channel
// is nil if parts has no webhook.
func newManager(reach *rest.Config, p parts, namespace string, cfg serving, options ctrl.Options) (ctrl.Manager, <-chan struct{}, error) {
	options.Metrics = metricsOptions(cfg)
	options.HealthProbeBindAddress = cfg.probes
	options.LeaderElection = cfg.leaderElect
	options.LeaderElectionID = p.manager
	options.LeaderElectionNamespace = namespace
	options.LeaderElectionReleaseOnCancel = true
	options.WebhookServer = newDraining(ctrlwebhook.Options{Host: cfg.webhookHost, Port: cfg.webhookPort, CertDir: cfg.certDir})
	mgr, err := ctrl.NewManager(reach, options)
	if err != nil {
		return nil, nil, fmt.Errorf("make the manager: %w", err)
	}
	if err := ctrlmetrics.Registry.Register(buildinfo.Collector(strings.TrimPrefix(p.manager, "datacache-"), version)); err != nil {
		return nil, nil, fmt.Errorf("register metrics: %w", err)
	}
	if p.webhook == "" {
		return mgr, nil, manage.Probe(mgr, nil)
	}
	certificate, err := certificate(mgr, p, namespace, cfg)
	if err != nil {
		return nil, nil, err
	}
	return mgr, certificate, manage.Probe(mgr, certificate)
}

// callTimeout is the API server's timeout of webhook calls (timeoutSeconds in the manifests).
const callTimeout = 10 * time.Second

// draining is a webhook server that completes the calls in progress when the manager is stopped. controller-runtime would cancel
// them, and each would reject its object. Webhooks may be registered while it starts: its mux exists from the beginning.
type draining struct {
	ctrlwebhook.Server
	mux *http.ServeMux
}

func newDraining(options ctrlwebhook.Options) draining {
	options.WebhookMux = http.NewServeMux()
	return draining{ctrlwebhook.NewServer(options), options.WebhookMux}
}

// WebhookMux returns the mux that Register adds to.
func (d draining) WebhookMux() *http.ServeMux { return d.mux }

// Register serves calls at the path with a context that only a timeout ends.
func (d draining) Register(path string, hook http.Handler) {
	d.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := tracing.WithParent(context.WithoutCancel(r.Context()), r.Header.Get(tracing.Header)) // an API server that makes traces sends it
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		hook.ServeHTTP(w, r.WithContext(ctx))
	}))
}

// metricsOptions serve the metrics with a self-signed certificate, to clients that may get /metrics.
func metricsOptions(cfg serving) metricsserver.Options {
	options := metricsserver.Options{BindAddress: cfg.metrics}
	if cfg.metricsAuth {
		options.SecureServing, options.FilterProvider = true, filters.WithAuthenticationAndAuthorization
	}
	return options
}
