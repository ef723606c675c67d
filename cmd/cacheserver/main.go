// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command cacheserver keeps an Iceberg table in memory and serves it over Arrow Flight.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/redact"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	command.HideSecrets(os.Environ(), os.Args)
	err := root(os.Getenv).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(redact.Writer(os.Stderr), "error:", err)
		os.Exit(exitCode(err))
	}
}

// root returns the root command. Flags that are not given get their values from env.
func root(env command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cacheserver",
		Short: "Keep an Iceberg table in memory and serve it over Arrow Flight",
		Long: `cacheserver keeps one Iceberg table, decoded once, in the memory of a few machines and streams it over
Arrow Flight to every rank of a training job.

One head plans the table and tells clients where their rows are; data nodes hold the rows and stream them.
"local" runs all of them in one process. Clients need the head's address alone.`,
		Example: `  # a whole cache on this machine
  cacheserver local --metadata ./warehouse/db/events/metadata/00003-5a1c.metadata.json

  # what a cache of three data nodes would hold
  cacheserver inspect --metadata s3://bucket/db/events/metadata/00003-5a1c.metadata.json --nodes 3`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetOut(redact.Writer(os.Stdout)) // --help shows default values from the environment
	cmd.SetErr(redact.Writer(os.Stderr))
	cmd.AddCommand(headCommand(env), nodeCommand(env), localCommand(env), inspectCommand(env), auditCommand(env), initializerCommand(env), probeCommand(), reachCommand(), versionCommand())
	command.Complete(cmd)
	cmd.SetFlagErrorFunc(command.FlagError)
	return cmd
}
