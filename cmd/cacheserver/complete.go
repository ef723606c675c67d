// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/transport"
)

// flagValues are the values of flags that have only these, by flag.
var flagValues = map[string][]cobra.Completion{
	"transport":  {string(transport.H2), string(transport.GRPC)},
	"log-format": {"text", "json"},
	"log-level":  {"debug", "info", "warn", "error"},
}

// completeFlags completes the values of flagValues' flags, wherever a command has them.
func completeFlags(cmd *cobra.Command) {
	for name, values := range flagValues {
		if cmd.Flags().Lookup(name) == nil {
			continue
		}
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // the flag exists, and is registered once
		}
	}
	for _, child := range cmd.Commands() {
		completeFlags(child)
	}
}
