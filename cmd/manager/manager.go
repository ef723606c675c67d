// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/kubeflow/datacache/internal/manage"
)

// start sets up logs and says how the API server is reached.
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

// newManager makes a manager from options that name its types and informers. The webhook may be set up once the channel is closed; it is
// nil where the parts have no webhook.
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
	if p.webhook == "" {
		return mgr, nil, manage.Probe(mgr, nil)
	}
	certificate, err := certificate(mgr, p, namespace, cfg)
	if err != nil {
		return nil, nil, err
	}
	return mgr, certificate, manage.Probe(mgr, certificate)
}

// callTimeout is how long the API server waits for an answer (timeoutSeconds in manifests).
const callTimeout = 10 * time.Second

// draining is a webhook server that answers the calls it has when the manager is told to end. controller-runtime cancels them, and each
// would refuse its object. Webhooks may be set up while it starts: its mux is there from the beginning.
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

// Register serves calls at the path with a context that ends by time alone.
func (d draining) Register(path string, hook http.Handler) {
	d.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), callTimeout)
		defer cancel()
		hook.ServeHTTP(w, r.WithContext(ctx))
	}))
}

// metricsOptions serve the metrics with a certificate that the manager signs itself, to those who may get /metrics.
func metricsOptions(cfg serving) metricsserver.Options {
	options := metricsserver.Options{BindAddress: cfg.metrics}
	if cfg.metricsAuth {
		options.SecureServing, options.FilterProvider = true, filters.WithAuthenticationAndAuthorization
	}
	return options
}
