// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command cacheserver keeps an Iceberg table in memory and serves it over Arrow Flight.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/redact"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	hideSecrets(os.Environ(), os.Args)
	err := command(environment(os.Getenv)).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(redact.Writer(os.Stderr), "error:", err)
		os.Exit(exitCode(err))
	}
}

// hideSecrets registers the credentials in the environment and in the arguments for redaction from all output.
func hideSecrets(environ, args []string) {
	for _, each := range environ {
		name, value, _ := strings.Cut(each, "=")
		redact.Property(name, value)
		if strings.HasPrefix(name, "OTEL_EXPORTER_OTLP_") && strings.HasSuffix(name, "HEADERS") {
			hideHeaders(value)
		}
	}
	for _, arg := range args { // --property s3.secret-access-key=...,token=...
		for property := range strings.SplitSeq(strings.TrimPrefix(arg, "--property="), ",") {
			name, value, _ := strings.Cut(property, "=")
			redact.Property(name, value)
		}
	}
}

// hideHeaders registers the values of an exporter's headers, which are URL-escaped: api-key=...,authorization=Bearer%20...
func hideHeaders(headers string) {
	for header := range strings.SplitSeq(headers, ",") {
		_, value, _ := strings.Cut(header, "=")
		value = strings.TrimSpace(value)
		redact.Hide(value)
		if sent, err := url.PathUnescape(value); err == nil {
			redact.Hide(sent)
		}
	}
}

// command returns the root command. Flags that are not given get their values from env.
func command(env environment) *cobra.Command {
	root := &cobra.Command{
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
	root.SetOut(redact.Writer(os.Stdout)) // --help shows default values from the environment
	root.SetErr(redact.Writer(os.Stderr))
	root.AddCommand(headCommand(env), nodeCommand(env), localCommand(env), inspectCommand(env), auditCommand(env), initializerCommand(env), objectCacheCommand(env), probeCommand(), versionCommand())
	completeFlags(root)
	return root
}
