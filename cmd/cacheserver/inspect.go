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

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/delta"
	"github.com/kubeflow/datacache/cacheserver/source/files"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/cacheserver/sweep"
	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/words"
)

func inspectCommand(env command.Env) *cobra.Command {
	var (
		table  tableFlags
		demand assign.Demand
		rate   string
		memory string
	)
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Print what a cache of a table would hold, and where",
		Long: `inspect reads the table's metadata and the footers of its data files, no rows, and prints the plan: its
splits (Parquet row groups, cut where a node's share ends) in row order, and which data node gets which.

ROWS are the file's own, before deletes and the filter; BYTES are the selected columns, uncompressed; in memory integers take fewer where
their values need fewer. With --ranks and --rate it also prints the memory that the cache takes at most, the cores and the connections, by
measurements. With --memory-limit it prints how much of each data node's rows stays in memory if they are in files too (--spill-dir of data
nodes), and how much is read from the files in an epoch of shuffled rows.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkDemand(&demand, rate); err != nil {
				return err
			}
			src, err := table.open(env, nil)
			if err != nil {
				return err
			}
			plan, err := src.Plan(cmd.Context(), nil, nil)
			if err != nil {
				return err
			}
			if err := printPlan(cmd.OutOrStdout(), plan, demand); err != nil || memory == "" {
				return err
			}
			return printSpill(cmd.OutOrStdout(), plan, demand.Nodes, memory)
		},
	}
	table.register(cmd, env)
	cmd.Flags().IntVar(&demand.Nodes, "nodes", 1, "data nodes to deal the splits to")
	cmd.Flags().IntVar(&demand.Ranks, "ranks", 0, "ranks that read at the same time: print what the cache takes")
	cmd.Flags().StringVar(&memory, "memory-limit", "", "memory of a data node with rows on disk, such as 12Gi: print how much of its rows is where")
	cmd.Flags().StringVar(&rate, "rate", "0", "what each rank reads a second, such as 20MB/s")
	return cmd
}

// checkDemand checks the flags that say how much is read, and sets the rate.
func checkDemand(d *assign.Demand, rate string) error {
	if d.Nodes < 1 || d.Nodes > head.MostNodes {
		return fmt.Errorf("--nodes: %d, want 1 to %d", d.Nodes, head.MostNodes)
	}
	if err := d.Validate(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if rate == "0" {
		return nil
	}
	var err error
	if d.Rate, err = command.ParseMemory(strings.TrimSuffix(rate, "/s")); err != nil || strings.HasSuffix(rate, "%") {
		return fmt.Errorf("--rate: %q, want bytes a second, such as 20MB/s", rate)
	}
	return nil
}

// printSpill writes how much of the data nodes' rows stays in memory, and how much is read from files.
func printSpill(w io.Writer, plan *source.Plan, nodes int, memoryText string) error {
	limit, err := memoryLimit(memoryText, true)
	if err != nil {
		return err
	}
	memory := node.MemoryForRows(limit - keptForClients(limit))
	splits := head.CutSplits(plan.Splits, nodes)
	var text strings.Builder
	fmt.Fprintf(&text, "\nNODE\tBYTES\tIN MEMORY\tREAD AN EPOCH\n")
	for i, run := range head.DealSplits(splits, nodes) {
		rows, bytes := total(splits[run.First:run.End])
		row := bytes / max(1, rows)
		d := sweep.Divide(memory, bytes, row, spill.PieceOf(row))
		fmt.Fprintf(&text, "%d\t%d\t%d\t%.0f\n", i, bytes, d.Stay, d.Reads*float64(bytes))
	}
	return printTable(w, text.String())
}

// printSizing writes what a cache takes.
func printSizing(w io.Writer, d assign.Demand) error {
	var text strings.Builder
	fmt.Fprintf(&text, "\nWITH %d RANKS AT %s/s\t\n", d.Ranks, words.Bytes(float64(d.Rate)))
	for _, line := range head.DescribeSizing(d) {
		fmt.Fprintf(&text, "%s\t%s\n", line[0], line[1])
	}
	return printTable(w, text.String())
}

// printPlan writes the plan as a table for people and for tools like awk.
func printPlan(w io.Writer, plan *source.Plan, demand assign.Demand) error {
	described, err := describePin(plan.Version.Pin)
	if err != nil {
		return fmt.Errorf("the plan's pin: %w", err)
	}
	splits := head.CutSplits(plan.Splits, demand.Nodes)
	var text strings.Builder
	fmt.Fprintf(&text, "%scolumns   %d\n\n", described, plan.Schema.NumFields())
	text.WriteString("NODE\tSPLIT\tROWS\tBYTES\tROW GROUP\tFILE\n")
	runs := head.DealSplits(splits, demand.Nodes)
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
	if err := printTable(w, text.String()); err != nil || demand.Ranks == 0 {
		return err
	}
	demand.Rows, demand.Bytes, demand.Splits = rows, bytes, len(splits)
	return printSizing(w, demand)
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
	switch kindOf(text) {
	case files.Kind:
		var pin files.Pin
		err := json.Unmarshal(text, &pin)
		return fmt.Sprintf("files     %d at %s\nversion   %d\n", pin.Files, pin.String(), pin.Snapshot()), err
	case delta.Kind:
		var pin delta.Pin
		err := json.Unmarshal(text, &pin)
		return fmt.Sprintf("table     %s\nuuid      %s\nversion   %d\n", pin.URI, pin.ID(), pin.Version), err
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
