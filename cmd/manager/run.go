// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/kubeflow/datacache/controller"
	"github.com/kubeflow/datacache/internal/manage"
	"github.com/kubeflow/datacache/internal/overview/reviewed"
	"github.com/kubeflow/datacache/internal/tracing/export"
	"github.com/kubeflow/datacache/webhook"
)

// cachesParts are the names in manifests/base.
var cachesParts = parts{
	manager: "datacache-manager", webhook: "datacache.kubeflow.org", webhooks: []rotator.WebhookType{rotator.Mutating, rotator.Validating},
	service: "datacache-webhook", certificate: "datacache-webhook-cert",
}

// run serves until ctx ends.
func run(ctx context.Context, cfg config) error {
	reach, err := cfg.start(cachesParts)
	if err != nil {
		return err
	}
	tracer, flush, err := export.Start(ctx, export.Config{Env: os.Getenv, Service: cachesParts.manager, Version: version, Log: slog.Default()})
	if err != nil {
		return err
	}
	defer flush()
	reach.QPS, reach.Burst = cfg.qps, cfg.burst
	scheme := runtime.NewScheme()
	if err := controller.AddToScheme(scheme); err != nil {
		return err
	}
	mgr, certificate, err := newManager(reach, cachesParts, cfg.caches.Namespace(), cfg.serving, ctrl.Options{Scheme: scheme, Cache: cacheOptions(cfg.namespaces)})
	if err != nil {
		return err
	}
	options, err := cfg.caches.Options(ctx, mgr.GetAPIReader())
	if err != nil {
		return err
	}
	options.Tracer = tracer
	if err := controller.Setup(ctx, mgr, options); err != nil {
		return fmt.Errorf("set up the controllers: %w", err)
	}
	admission := func() error {
		return errors.Join(webhook.Setup(mgr, cfg.caches.Settings(), tracer), reviewed.Setup(ctx, mgr))
	}
	if err := manage.Once(mgr, certificate, admission); err != nil {
		return fmt.Errorf("set up the webhook: %w", err)
	}
	slog.Info("starting", "version", version, "cache-image", options.Image, "namespace", options.Namespace)
	return mgr.Start(ctx)
}

// cacheOptions restrict the informers to the namespaces; without any they cover the whole cluster.
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
