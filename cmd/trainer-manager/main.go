// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command trainer-manager is Kubeflow Trainer v2.3.0 with datacache compiled in: one manager in place of Trainer's and ours. It takes the
// flags and the configuration file of Trainer's own manager.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(os.Getenv).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func command(env func(string) string) *cobra.Command {
	var cfg config
	cmd := &cobra.Command{
		Use:           "trainer-manager",
		Short:         "Kubeflow Trainer with datacache compiled in",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.image == "" {
				return errors.New("--cache-image (env CACHE_IMAGE) is empty: name the image of the cache server")
			}
			return run(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.file, "config", "", "Trainer's configuration file (config.trainer.kubeflow.org/v1alpha1); empty means its defaults")
	flags.StringVar(&cfg.featureGates, "feature-gates", "", "Trainer's feature gates, as key=value pairs joined by commas")
	flags.StringVar(&cfg.image, "cache-image", env("CACHE_IMAGE"), "image of the cache server, for heads, data nodes and the gate; required (env CACHE_IMAGE)")
	flags.StringVar(&cfg.kubeconfig, "kubeconfig", env("KUBECONFIG"), "file that says how to reach the API server; empty inside a cluster (env KUBECONFIG)")
	flags.BoolVar(&cfg.noAffinity, "no-zone-affinity", false, "don't make training pods prefer the zone of their cache")
	return cmd
}

// config is what the command line says.
type config struct {
	file, featureGates string
	image, kubeconfig  string
	noAffinity         bool
}
