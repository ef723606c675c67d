// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command objectcache keeps blobs on a node's disk and serves them over HTTP.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/redact"
)

// version is set by the linker, see the Makefile.
var version = ""

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	command.HideSecrets(os.Environ(), os.Args)
	err := root(os.Getenv).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(redact.Writer(os.Stderr), "error:", err)
		os.Exit(1)
	}
}

// root returns the root command. Flags that are not given get their values from env.
func root(env command.Env) *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "objectcache",
		Short: "Cache blobs on this node's disk, for everyone whom their bucket is open to",
		Long: `objectcache serves PUT, GET, HEAD and DELETE of /v1/objects/BUCKET/KEY from files in a folder, and sends a request
on to the node that has the key, if that is another one. Who asks shows a ServiceAccount token, as Authorization: Bearer.
When it serves it prints one line to standard output: ready http://HOST:PORT http://HOST:PORT

It is a cache: any object may go at any time.`,
		Example: `  # on one machine, with no cluster
  echo '{"TotalLimit": "20Gi", "Bucket": [{"Name": "scratch", "Public": true, "BucketQuota": "10Gi"}]}' > buckets.json
  echo 'some-secret me' > tokens
  objectcache --standalone --tokens tokens --buckets buckets.json --dir /var/tmp/objects --listen 127.0.0.1:8000
  curl --oauth2-bearer "$(cut -d' ' -f1 tokens)" -T file http://127.0.0.1:8000/v1/objects/scratch/file`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			log, err := f.logs.Logger()
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), log)
		},
	}
	cmd.SetOut(redact.Writer(os.Stdout)) // --help shows default values from the environment
	cmd.SetErr(redact.Writer(os.Stderr))
	f.register(cmd.Flags(), env)
	cmd.AddCommand(prepareCommand(env), &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "objectcache %s, %s\n", command.Version(version), runtime.Version())
			return err
		},
	})
	command.Complete(cmd)
	cmd.SetFlagErrorFunc(command.FlagError)
	return cmd
}
