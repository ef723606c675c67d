// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command trainer-manager is Kubeflow Trainer v2.3.0 with datacache compiled in: one manager in place of Trainer's and ours. It accepts
// every flag of Trainer's own manager and its configuration file.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/kubeflow/trainer/v2/pkg/util/cert"
	"github.com/spf13/cobra"
	zaplog "go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/kubeflow/datacache/internal/manage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cmd := command(os.Getenv)
	cmd.SetArgs(doubleDashes(os.Args[1:]))
	err := cmd.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// config is the parsed command line.
type config struct {
	caches             manage.CacheFlags
	file, featureGates string
	kubeconfig         string
	log                zap.Options
}

func command(env func(string) string) *cobra.Command {
	cfg := config{log: zap.Options{TimeEncoder: zapcore.RFC3339NanoTimeEncoder, ZapOpts: []zaplog.Option{zaplog.AddCaller()}}} // as in Trainer
	cmd := &cobra.Command{
		Use:           "trainer-manager",
		Short:         "Kubeflow Trainer with datacache compiled in",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), &cfg) },
	}
	flags := cmd.Flags()
	cfg.caches.Register(flags, env, cert.GetOperatorNamespace())
	flags.StringVar(&cfg.file, "config", "", "Trainer's configuration file (config.trainer.kubeflow.org/v1alpha1); empty means its defaults")
	flags.StringVar(&cfg.featureGates, "feature-gates", "", "Trainer's feature gates, as key=value pairs joined by commas")
	flags.StringVar(&cfg.kubeconfig, "kubeconfig", env("KUBECONFIG"), "kubeconfig of the API server; empty inside a cluster (env KUBECONFIG)")
	logFlags := flag.NewFlagSet("log", flag.ContinueOnError)
	cfg.log.BindFlags(logFlags)
	flags.AddGoFlagSet(logFlags)
	return cmd
}

// doubleDashes rewrites -name and -name=value as --name and --name=value: Trainer's own manager accepts both, as Go's flag package
// does.
func doubleDashes(args []string) []string {
	rewritten := make([]string, len(args))
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && len(arg) > 2 {
			arg = "-" + arg
		}
		rewritten[i] = arg
	}
	return rewritten
}
