// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/files"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/internal/command"
)

func inspectCommand(env command.Env) *cobra.Command {
	var (
		table tableFlags
		nodes int
	)
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Print what a cache of a table would hold, and where",
		Long: `inspect reads the table's metadata and the footers of its data files, no rows, and prints the plan: its
splits (Parquet row groups, cut where a node's share ends) in row order, and which data node gets which.

ROWS are the file's own, before deletes and the filter; BYTES are the selected columns, uncompressed.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if nodes < 1 {
				return fmt.Errorf("--nodes: %d, want at least 1", nodes)
			}
			src, err := table.open(env, nil)
			if err != nil {
				return err
			}
			plan, err := src.Plan(cmd.Context(), nil, func(int, int) {})
			if err != nil {
				return err
			}
			return printPlan(cmd.OutOrStdout(), plan, nodes)
		},
	}
	table.register(cmd, env)
	cmd.Flags().IntVar(&nodes, "nodes", 1, "data nodes to deal the splits to")
	return cmd
}

// printPlan writes the plan as a table for people and for tools like awk.
func printPlan(w io.Writer, plan *source.Plan, nodes int) error {
	described, err := describePin(plan.Version.Pin)
	if err != nil {
		return fmt.Errorf("the plan's pin: %w", err)
	}
	splits := head.CutSplits(plan.Splits, nodes)
	var text strings.Builder
	fmt.Fprintf(&text, "%scolumns   %d\n\n", described, plan.Schema.NumFields())
	text.WriteString("NODE\tSPLIT\tROWS\tBYTES\tROW GROUP\tFILE\n")
	runs := head.DealSplits(splits, nodes)
	for node, run := range runs {
		for i := run.First; i < run.End; i++ {
			s := splits[i]
			fmt.Fprintf(&text, "%d\t%d\t%d\t%d\t%d\t%s\n", node, i, s.Rows, s.Bytes, s.RowGroup, s.File)
		}
	}
	text.WriteString("\nNODE\tSPLITS\tROWS\tBYTES\t\t\n")
	for node, run := range runs {
		rows, bytes := total(splits[run.First:run.End])
		fmt.Fprintf(&text, "%d\t%d\t%d\t%d\t\t\n", node, run.Len(), rows, bytes)
	}
	rows, bytes := total(splits)
	fmt.Fprintf(&text, "all\t%d\t%d\t%d\t\t\n", len(splits), rows, bytes)
	return printTable(w, text.String())
}

// printTable writes lines with their tabs aligned.
func printTable(w io.Writer, text string) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(out, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return out.Flush()
}

// describePin says which version of which table or files was read.
func describePin(text json.RawMessage) (string, error) {
	if kindOf(text) == files.Kind {
		var pin files.Pin
		err := json.Unmarshal(text, &pin)
		return fmt.Sprintf("files     %d at %s\nversion   %d\n", pin.Files, pin.String(), pin.Snapshot()), err
	}
	var pin iceberg.Pin
	err := json.Unmarshal(text, &pin)
	return pinText(pin), err
}

// pinText says which snapshot of which table was read.
func pinText(pin iceberg.Pin) string {
	return fmt.Sprintf("metadata  %s\nuuid      %s\nsnapshot  %s\n", pin.MetadataLocation, pin.UUID, snapshotName(pin))
}

func snapshotName(pin iceberg.Pin) string {
	if !pin.HasSnapshot {
		return "none: the table is empty"
	}
	return fmt.Sprint(pin.SnapshotID)
}

func total(splits []source.Split) (rows, bytes int64) {
	for _, s := range splits {
		rows += s.Rows
		bytes += s.Bytes
	}
	return rows, bytes
}
