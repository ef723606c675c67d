// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kubeflow/datacache/internal/manage"
	"github.com/kubeflow/datacache/scratch"
)

// scratchParts are the names in manifests/scratch-volumes.
var scratchParts = parts{
	manager: "datacache-scratch-volumes", webhook: "scratch-volumes.datacache.kubeflow.org", webhooks: []rotator.WebhookType{rotator.Mutating},
	service: "datacache-scratch-volumes", certificate: "datacache-scratch-volumes-cert",
}

// scratchConfig is the command line of scratch-volumes.
type scratchConfig struct {
	serving
	namespace string
	webhook   bool
	options   scratch.Options
}

func scratchVolumesCommand(env func(string) string) *cobra.Command {
	var cfg scratchConfig
	cmd := &cobra.Command{
		Use:   "scratch-volumes",
		Short: "Give every replica of a job disks of its own, kept through retries and gone with the job",
		Long: `scratch-volumes serves the admission webhook of pods with scratch volumes, and makes the claims that such pods wait for, one after
the other at a rate that holds for the whole cluster. Several may run: all answer the webhook, one of them (--leader-elect) makes claims.
It needs neither Kubeflow Trainer nor DataCaches.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runScratchVolumes(cmd.Context(), cfg) },
	}
	namespace := env("POD_NAMESPACE")
	if namespace == "" {
		namespace = "datacache-scratch-volumes"
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.namespace, "namespace", namespace, "namespace that this manager runs in (env POD_NAMESPACE)")
	flags.Float64Var(&cfg.options.QPS, "claim-qps", 5, "claims a second that are made in the whole cluster, over time")
	flags.IntVar(&cfg.options.Burst, "claim-burst", 10, "claims that may be made at once after a while without any")
	flags.BoolVar(&cfg.webhook, "webhook", true, "serve the admission webhook; off where a MutatingAdmissionPolicy admits pods")
	cfg.register(flags, env, scratchParts)
	return cmd
}

// runScratchVolumes serves until ctx ends.
func runScratchVolumes(ctx context.Context, cfg scratchConfig) error {
	reach, err := cfg.start(scratchParts)
	if err != nil {
		return err
	}
	reach.QPS = -1 // a single worker sends requests one after the other, so no rate limit is needed
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return fmt.Errorf("register types: %w", err)
	}
	p := scratchParts
	if !cfg.webhook {
		p = parts{manager: p.manager}
	}
	mgr, certificate, err := newManager(reach, p, cfg.namespace, cfg.serving, ctrl.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	if err := scratch.Setup(mgr, cfg.options); err != nil {
		return err
	}
	if cfg.webhook {
		if err := manage.Once(mgr, certificate, func() error { return scratch.SetupWebhook(mgr) }); err != nil {
			return fmt.Errorf("set up the webhook: %w", err)
		}
	}
	slog.Info("starting", "version", version, "claim-qps", cfg.options.QPS, "claim-burst", cfg.options.Burst)
	return mgr.Start(ctx)
}
