// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// version is set by the linker, see the Makefile. If it is empty, the module's version is used, which go install PACKAGE@VERSION
// records.
var version = ""

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				info = &debug.BuildInfo{}
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "cacheserver %s, wire contract v%d, %s\n", cmp.Or(version, info.Main.Version), protocol.Version, info.GoVersion)
			return err
		},
	}
}
