// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/internal/command"
)

func auditCommand(env command.Env) *cobra.Command {
	var (
		table  tableFlags
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "audit [TABLE]",
		Short: "Compare what a table's metadata states about its rows with the rows",
		Long: `audit reads all rows of a snapshot, those that deletes and the filter leave out too, and compares them with
what is stated about them: the totals of the summary, the counts of the manifest list, and the counts, null counts, bounds and
identity partitions of manifests and footers. TABLE is short for --metadata.

It prints what differs, and ends with 1 if anything does. HIDES says that rows may be missing, or that a filter which relies
on the number or bound may leave out rows that it is true for.`,
		Example: `  cacheserver audit s3://bucket/db/events/metadata/00003-5a1c.metadata.json --columns id,label`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				table.source.location.Metadata = args[0]
			}
			if len(table.source.files) > 0 || table.source.delta != "" {
				return errors.New("--files, --delta: only the metadata of Iceberg tables is audited: name one by --metadata or --catalog-uri")
			}
			if err := table.source.named(); err != nil {
				return err
			}
			src, err := table.table(env)
			if err != nil {
				return err
			}
			src.Selection.Filter = ""
			opened, err := iceberg.Open(cmd.Context(), src.Store, src.Location, src.Selection)
			if err != nil {
				return err
			}
			found, err := opened.Audit(cmd.Context(), func(int, int) {})
			if err != nil {
				return err
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(found)
			} else {
				err = printAudit(cmd.OutOrStdout(), found)
			}
			if err == nil && len(found.Differences) > 0 {
				err = fmt.Errorf("%d of the table's numbers and bounds differ from its rows, %d may hide rows", len(found.Differences), hiding(found))
			}
			return err
		},
	}
	table.register(cmd, env)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: also rows, nulls, NaNs, minimum and maximum of each data file's columns")
	return cmd
}

// printAudit writes what differs as a table for people and for tools like awk.
func printAudit(w io.Writer, a *iceberg.Audit) error {
	var rows int64
	for _, f := range a.Files {
		rows += f.Rows
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%sfiles     %d, and %d delete files\nrows      %d before deletes\n\n", pinText(a.Pin), len(a.Files), a.DeleteFiles, rows)
	if len(a.Differences) == 0 {
		text.WriteString("nothing differs\n")
	} else {
		text.WriteString("STATED BY\tCOLUMN\tWHAT\tSTATED\tROWS HAVE\tHIDES\tFILE\n")
	}
	for _, d := range a.Differences {
		fmt.Fprintf(&text, "%s\t%s\t%s\t%s\t%s\t%t\t%s\n", d.By, orDash(d.Column), d.What, d.Says, d.Has, d.Hides, d.File)
	}
	return printTable(w, text.String())
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func hiding(a *iceberg.Audit) int {
	n := 0
	for _, d := range a.Differences {
		if d.Hides {
			n++
		}
	}
	return n
}
