// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/internal/command"
)

// completeWithin is how long a shell may wait for names that are read from a table's metadata.
const completeWithin = 5 * time.Second

// complete completes the flags' values with names of the table that the command line, or the environment, names. Of several columns,
// separated by commas, it completes the last.
func (f *tableFlags) complete(cmd *cobra.Command, env command.Env) {
	for flag, list := range map[string]func(*iceberg.Table) []iceberg.Name{
		"columns": (*iceberg.Table).Columns, "ref": (*iceberg.Table).Refs, "snapshot-id": (*iceberg.Table).Snapshots,
	} {
		register(cmd, flag, func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
			defer cancel()
			src, err := f.source.table(env)
			if err != nil || f.source.named() != nil || len(f.source.files) > 0 || f.source.delta != "" {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			opened, err := iceberg.Open(ctx, src.Store, src.Location, iceberg.Selection{})
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			before := ""
			if flag == "columns" {
				before = typed[:strings.LastIndexByte(typed, ',')+1]
			}
			var names []cobra.Completion
			for _, name := range list(opened) {
				names = append(names, cobra.CompletionWithDesc(before+name.Name, name.Says))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		})
	}
}

// register registers the completion of a flag's values. It panics if the command has no such flag.
func register(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err)
	}
}
