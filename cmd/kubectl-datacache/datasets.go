// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/words"
)

func datasetsCommand(at *target) *cobra.Command {
	cmd := &cobra.Command{
		Use: "datasets NAME", Short: "List the datasets that clients have put into a cache",
		Long: `Asks the head of the cache, through the API server. It needs the right to create pods/portforward, which the role edit has.`,
		Args: one("cache"), ValidArgsFunction: at.caches,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := at.reach()
		if err != nil {
			return err
		}
		datasets, err := c.datasets(cmd.Context(), args[0])
		switch {
		case err != nil:
			return err
		case *output != "":
			return output.print(cmd.OutOrStdout(), datasets)
		case len(datasets) == 0:
			fmt.Fprintf(cmd.ErrOrStderr(), "nobody has put a dataset into %s\n", args[0])
			return nil
		}
		return printDatasets(cmd.OutOrStdout(), datasets, time.Now())
	}
	return cmd
}

// datasets returns what the head of a cache lists. There is one head: caches that take datasets have one copy.
func (c *cluster) datasets(ctx context.Context, name string) ([]view.Dataset, error) {
	dc, err := c.cache(ctx, name)
	if err != nil {
		return nil, err
	}
	if dc.Spec.Arrow == nil || !dc.Spec.Arrow.MayPut() {
		return nil, fmt.Errorf("DataCache %s/%s takes no datasets from clients: set spec.arrow.puts.enabled", c.namespace, name)
	}
	heads, err := c.heads(ctx, dc)
	if err != nil {
		return nil, fmt.Errorf("DataCache %s/%s: %w", c.namespace, name, err)
	}
	f, err := c.forward(&heads[0], 0)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	status, err := ask(ctx, f.address)
	if err != nil {
		return nil, fmt.Errorf("ask pod %s/%s: %w", heads[0].Namespace, heads[0].Name, err)
	}
	return status.Datasets, nil
}

func printDatasets(out io.Writer, datasets []view.Dataset, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAME\tSTATE\tROWS\tBYTES\tAGE\tFINGERPRINT\t")
	for _, d := range datasets {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, d.State, humanize.Comma(d.Rows), words.Bytes(float64(d.Bytes)),
			duration.HumanDuration(now.Sub(time.Unix(d.Published, 0))), d.Fingerprint, d.Reason)
	}
	return table.Flush()
}
