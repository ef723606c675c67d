// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/words"
)

// atOnce is the number of caches that top asks at once.
const atOnce = 8

func topCommand(at *target) *cobra.Command {
	all, over := false, 5*time.Second
	cmd := &cobra.Command{
		Use: "top [NAME]", Short: "Show memory against its limit, and who reads how fast",
		Long: `Asks the heads of the caches twice, through the API server, and shows what their data nodes and readers use.
It needs the right to create pods/portforward, which the role edit has.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: at.caches,
	}
	output := outputFlag(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "caches of all namespaces")
	cmd.Flags().DurationVar(&over, "over", over, "time over which rates are taken; data nodes report about once a second")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if over < time.Second {
			return fmt.Errorf("--over: %v is too short, data nodes report about once a second: at least 1s", over)
		}
		if all && len(args) > 0 {
			return errors.New("--all-namespaces: leave out the cache's name, or name its --namespace instead")
		}
		c, err := at.reach()
		if err != nil {
			return err
		}
		usages, err := c.top(cmd.Context(), args, all, over)
		if err != nil && usages == nil {
			return err
		}
		if *output != "" {
			return errors.Join(output.print(cmd.OutOrStdout(), usages), err)
		}
		if len(usages) == 0 {
			printNone(cmd.ErrOrStderr(), c.scope(all))
			return err
		}
		return errors.Join(printTop(cmd.OutOrStdout(), usages, len(args) > 0), err)
	}
	return cmd
}

// top returns the usage of the cache that args names, or of all caches with a table. With an error, usages has what is known in spite
// of it, and nil if that is nothing.
func (c *cluster) top(ctx context.Context, args []string, all bool, over time.Duration) (usages []*cacheUsage, err error) {
	if len(args) > 0 {
		dc, err := c.cache(ctx, args[0])
		if err != nil {
			return nil, err
		}
		u, err := c.usage(ctx, dc, over)
		if err != nil {
			return nil, fmt.Errorf("DataCache %s/%s: %w", dc.Namespace, dc.Name, err)
		}
		return []*cacheUsage{u}, nil
	}
	caches, err := c.list(ctx, c.scope(all))
	if err != nil {
		return nil, err
	}
	usages, failures := make([]*cacheUsage, len(caches.Items)), make([]error, len(caches.Items))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range caches.Items {
		group.Go(func() error {
			u, err := c.usage(ctx, &caches.Items[i], over)
			if err != nil {
				u.Problem = err.Error()
			}
			// A cache without pods is no failure of the command.
			if caches.Items[i].Status.State == v1alpha1.StateReady && caches.Items[i].Spec.Arrow != nil {
				failures[i] = err
			}
			usages[i] = u
			return nil
		})
	}
	_ = group.Wait()
	for i, err := range failures {
		if err != nil {
			return usages, fmt.Errorf("DataCache %s/%s: %w", usages[i].Namespace, usages[i].Name, err)
		}
	}
	return usages, nil
}

// printTop prints a line for each cache and, with details, its data nodes and readers.
func printTop(out io.Writer, usages []*cacheUsage, details bool) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tNAME\tSTATE\tMEMORY\tLIMIT\tDISK\tROWS/S\tBYTES/S\tREADERS\t")
	for _, u := range usages {
		if u.Problem != "" {
			fmt.Fprintf(table, "%s\t%s\t%s\t-\t-\t-\t-\t-\t-\t%s\n", u.Namespace, u.Name, u.State, u.Problem)
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t\n", u.Namespace, u.Name, u.State,
			words.Bytes(float64(u.MemoryUsed)), words.Bytes(float64(u.MemoryLimit)), words.Bytes(float64(u.DiskUsed)), words.Count(u.RowsPerSecond), words.Bytes(u.BytesPerSecond), len(u.Readers))
	}
	if details {
		for _, u := range usages {
			printDetails(table, u)
		}
	}
	return table.Flush()
}

func printDetails(table *tabwriter.Writer, u *cacheUsage) {
	_ = table.Flush() // the columns of each table are as wide as they need
	fmt.Fprintln(table, "\nHEAD\tDATA NODE\tSTATE\tMEMORY\tLIMIT\tDISK\tROWS\tRESTARTS")
	for _, n := range u.Nodes {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\n", n.Head, n.Index, n.State,
			words.Bytes(float64(n.MemoryUsed)), words.Bytes(float64(n.MemoryLimit)), words.Bytes(float64(n.DiskUsed)), humanize.Comma(n.Rows), n.Restarts)
	}
	if len(u.Readers) == 0 {
		return
	}
	_ = table.Flush()
	fmt.Fprintln(table, "\nJOB\tRANK\tCLIENT\tSTREAMS\tROWS/S\tBYTES/S\tBLOCKED\tAT WORK\tWHO WAITS")
	for _, r := range u.Readers {
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", r.Job, r.Rank, r.Client, r.Streams,
			words.Count(r.RowsPerSecond), words.Bytes(r.BytesPerSecond), words.Ratio(r.Blocked), words.Ratio(r.AtWork), words.WhoWaits(r.Streams, r.RowsPerSecond, r.Blocked, r.AtWork))
	}
}
