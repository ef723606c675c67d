// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/internal/command"
)

// version is set by the linker, see the Makefile. If it is empty, the module's version is used, which go install PACKAGE@VERSION
// records.
var version = ""

// builtVersion is the version of this program.
func builtVersion() string { return command.Version(version) }

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "cacheserver %s, wire contract v%d, %s\n", builtVersion(), protocol.Version, runtime.Version())
			return err
		},
	}
}
