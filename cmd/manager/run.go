// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/kubeflow/datacache/controller"
	"github.com/kubeflow/datacache/internal/manage"
	"github.com/kubeflow/datacache/webhook"
)

// run serves until ctx ends.
func run(ctx context.Context, cfg config) error {
	if err := manage.LogTo(os.Stderr, cfg.logFormat, cfg.logLevel); err != nil {
		return err
	}
	reach, err := manage.Reach(cfg.kubeconfig)
	if err != nil {
		return err
	}
	reach.QPS, reach.Burst = cfg.qps, cfg.burst
	reach.UserAgent = "datacache-manager/" + version
	mgr, err := newManager(reach, cfg)
	if err != nil {
		return err
	}
	certificate, err := certificate(mgr, cfg)
	if err != nil {
		return err
	}
	if err := manage.Probe(mgr, certificate); err != nil {
		return err
	}
	options, err := cfg.caches.Options(ctx, mgr.GetAPIReader())
	if err != nil {
		return err
	}
	if err := controller.Setup(ctx, mgr, options); err != nil {
		return fmt.Errorf("set up the controllers: %w", err)
	}
	admission := func() error { return webhook.Setup(mgr, cfg.caches.Settings()) }
	if err := manage.Once(mgr, certificate, admission); err != nil {
		return fmt.Errorf("set up the webhook: %w", err)
	}
	slog.Info("starting", "version", version, "cache-image", options.Image, "namespace", options.Namespace)
	return mgr.Start(ctx)
}

func newManager(reach *rest.Config, cfg config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := controller.AddToScheme(scheme); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(reach, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cacheOptions(cfg.namespaces),
		Metrics:                       metricsOptions(cfg),
		HealthProbeBindAddress:        cfg.probes,
		LeaderElection:                cfg.leaderElect,
		LeaderElectionID:              "datacache-manager",
		LeaderElectionNamespace:       cfg.caches.Namespace(),
		LeaderElectionReleaseOnCancel: true,
		WebhookServer:                 draining{ctrlwebhook.NewServer(ctrlwebhook.Options{Host: cfg.webhookHost, Port: cfg.webhookPort, CertDir: cfg.certDir})},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, nil
}

// cacheOptions keep the informers within the namespaces; none: in all of the cluster.
func cacheOptions(namespaces []string) cache.Options {
	options := controller.CacheOptions()
	if len(namespaces) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{}
	}
	for _, namespace := range namespaces {
		options.DefaultNamespaces[namespace] = cache.Config{}
	}
	return options
}

// callTimeout is how long the API server waits for an answer (timeoutSeconds in manifests/base/webhook).
const callTimeout = 10 * time.Second

// draining is a webhook server that answers the calls it has when the manager is told to end. controller-runtime cancels them, and each
// would refuse its TrainJob.
type draining struct{ ctrlwebhook.Server }

// Register serves calls at the path with a context that ends by time alone.
func (d draining) Register(path string, hook http.Handler) {
	d.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), callTimeout)
		defer cancel()
		hook.ServeHTTP(w, r.WithContext(ctx))
	}))
}

// metricsOptions serve the metrics with a certificate that the manager signs itself, to those who may get /metrics.
func metricsOptions(cfg config) metricsserver.Options {
	options := metricsserver.Options{BindAddress: cfg.metrics}
	if cfg.metricsAuth {
		options.SecureServing, options.FilterProvider = true, filters.WithAuthenticationAndAuthorization
	}
	return options
}
