// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"

	"github.com/go-logr/logr"
	configapi "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerconfig "github.com/kubeflow/trainer/v2/pkg/config"
	trainercontroller "github.com/kubeflow/trainer/v2/pkg/controller"
	"github.com/kubeflow/trainer/v2/pkg/features"
	trainerruntime "github.com/kubeflow/trainer/v2/pkg/runtime"
	"github.com/kubeflow/trainer/v2/pkg/runtime/core"
	"github.com/kubeflow/trainer/v2/pkg/statusserver"
	"github.com/kubeflow/trainer/v2/pkg/util/cert"
	"github.com/kubeflow/trainer/v2/pkg/webhooks"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	schedulerplugins "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	volcano "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"github.com/kubeflow/datacache/controller"
	"github.com/kubeflow/datacache/internal/manage"
	"github.com/kubeflow/datacache/internal/tracing/export"
	"github.com/kubeflow/datacache/plugin"
)

// The webhook configurations in Trainer's own manifests, whose certificates Trainer manages.
const (
	validatingWebhooks = "validator.trainer.kubeflow.org"
	mutatingWebhooks   = "defaulter.trainer.kubeflow.org"
)

// run serves until ctx ends. It does what Trainer's own main does (v2.3.0, cmd/trainer-controller-manager/main.go), decorates the runtimes
// in between, and adds datacache's controllers.
func run(ctx context.Context, flags *config) error {
	logger := zap.New(zap.UseFlagOptions(&flags.log))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	tracer, flush, err := export.Start(ctx, export.Config{Env: os.Getenv, Service: "datacache-trainer-manager", Log: slog.New(logr.ToSlogHandler(logger))})
	if err != nil {
		return err
	}
	defer flush()
	scheme, err := schemes()
	if err != nil {
		return err
	}
	options, cfg, err := trainerconfig.Load(scheme, flags.file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if err := enable(cfg.FeatureGates, flags.featureGates); err != nil {
		return err
	}
	reach, err := manage.Reach(flags.kubeconfig)
	if err != nil {
		return err
	}
	trainerconfig.ApplyClientConnection(reach, &cfg)
	options.Cache = cacheOptions()
	mgr, err := ctrl.NewManager(reach, options)
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	certificate, err := rotateCerts(mgr, &cfg)
	if err != nil {
		return err
	}
	if err := manage.Probe(mgr, certificate); err != nil {
		return err
	}
	runtimes, err := core.New(ctx, mgr.GetClient(), mgr.GetFieldIndexer(), &cfg)
	if err != nil {
		return fmt.Errorf("set up Trainer's runtimes: %w", err)
	}
	plugin.Decorate(runtimes, flags.caches.Settings(), mgr.GetClient(), mgr.GetAPIReader())
	caches, err := flags.caches.Options(ctx, mgr.GetAPIReader())
	if err != nil {
		return err
	}
	caches.Tracer = tracer
	if err := controller.Setup(ctx, mgr, caches); err != nil {
		return fmt.Errorf("set up datacache's controllers: %w", err)
	}
	if err := manage.Once(mgr, certificate, func() error { return setUpTrainer(mgr, runtimes, &cfg) }); err != nil {
		return fmt.Errorf("set up Trainer: %w", err)
	}
	return mgr.Start(ctx)
}

// cacheOptions are those of datacache's controllers, plus all ConfigMaps: Trainer reads through the same informers, and stores in a
// ConfigMap the runtime that it built a TrainJob from (v2.3.0 pkg/runtime/core/snapshot.go).
func cacheOptions() cache.Options {
	options := controller.CacheOptions()
	maps.DeleteFunc(options.ByObject, func(kind client.Object, _ cache.ByObject) bool {
		_, is := kind.(*corev1.ConfigMap)
		return is
	})
	return options
}

// schemes registers the types of Trainer, of the objects that it makes, and of datacache.
func schemes() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{controller.AddToScheme, clientgoscheme.AddToScheme, jobset.AddToScheme, configapi.AddToScheme, schedulerplugins.AddToScheme, volcano.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register types: %w", err)
		}
	}
	return scheme, nil
}

// enable sets Trainer's feature gates; those in the flag override those in the file.
func enable(file map[string]bool, flag string) error {
	gates := utilfeature.DefaultMutableFeatureGate
	if err := gates.SetFromMap(file); err != nil {
		return fmt.Errorf("--config: featureGates: %w", err)
	}
	if flag == "" {
		return nil
	}
	if err := gates.Set(flag); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	return nil
}

// rotateCerts has Trainer manage its webhooks' certificate, unless its configuration disables that. The channel is closed once there
// is a certificate.
func rotateCerts(mgr ctrl.Manager, cfg *configapi.Configuration) (<-chan struct{}, error) {
	ready := make(chan struct{})
	if !trainerconfig.IsCertManagementEnabled(cfg) {
		close(ready)
		return ready, nil
	}
	err := cert.ManageCerts(mgr, cert.Config{
		WebhookSecretName:                  cfg.CertManagement.WebhookSecretName,
		WebhookServiceName:                 cfg.CertManagement.WebhookServiceName,
		ValidatingWebhookConfigurationName: validatingWebhooks,
		MutatingWebhookConfigurationName:   mutatingWebhooks,
	}, ready)
	if err != nil {
		return nil, fmt.Errorf("set up Trainer's certificates: %w", err)
	}
	return ready, nil
}

// setUpTrainer adds Trainer's controllers, webhooks and status server.
func setUpTrainer(mgr ctrl.Manager, runtimes map[string]trainerruntime.Runtime, cfg *configapi.Configuration) error {
	if name, err := trainercontroller.SetupControllers(mgr, runtimes, ctrlcontroller.Options{}); err != nil {
		return fmt.Errorf("set up Trainer's controller %s: %w", name, err)
	}
	if name, err := webhooks.Setup(mgr, runtimes); err != nil {
		return fmt.Errorf("set up Trainer's webhook %s: %w", name, err)
	}
	if features.Enabled(features.TrainJobStatus) {
		if err := statusserver.SetupServer(mgr, cfg.StatusServer, cfg.TLS); err != nil {
			return fmt.Errorf("set up Trainer's status server: %w", err)
		}
	}
	return nil
}
