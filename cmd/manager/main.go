// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command manager is datacache's control plane for an unmodified Kubeflow Trainer: the admission webhook and the controllers. Its
// subcommand scratch-volumes is the control plane of scratch volumes, which needs neither Trainer nor caches.
package main

import (
	"context"
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
		Use:   "manager",
		Short: "Give TrainJobs their caches: admission webhook and controllers beside a stock Kubeflow Trainer",
		Long: `manager serves the admission webhook of TrainJobs, and runs the controllers of DataCaches, of the caches that TrainJobs ask for,
and of runtimes' twins. Several may run: all answer the webhook, one of them (--leader-elect) runs the controllers.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), cfg) },
	}
	cfg.register(cmd.Flags(), env)
	cmd.AddCommand(scratchVolumesCommand(env))
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cmd
}
