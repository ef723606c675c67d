// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/words"
)

func listCommand(at *target) *cobra.Command {
	all, state := false, ""
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the caches of a namespace, or of all",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	output := outputFlag(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "of all namespaces")
	cmd.Flags().StringVar(&state, "state", "", "only caches in this state, such as Failed")
	complete(cmd, "state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if state != "" && !slices.Contains(states, state) {
			return fmt.Errorf("--state: %q is none of %s", state, strings.Join(states, ", "))
		}
		c, err := at.reach()
		if err != nil {
			return err
		}
		caches, err := c.list(cmd.Context(), c.scope(all))
		if err != nil {
			return err
		}
		caches.Items = slices.DeleteFunc(caches.Items, func(dc v1alpha1.DataCache) bool { return state != "" && string(dc.Status.State) != state })
		if *output != "" {
			return output.printObject(cmd.OutOrStdout(), caches, c)
		}
		if len(caches.Items) == 0 {
			printNone(cmd.ErrOrStderr(), c.scope(all))
			return nil
		}
		return printList(cmd.OutOrStdout(), caches.Items, time.Now())
	}
	return cmd
}

// states are the values of --state.
var states = []cobra.Completion{
	string(v1alpha1.StatePending), string(v1alpha1.StatePlanning), string(v1alpha1.StateLoading), string(v1alpha1.StateReady),
	string(v1alpha1.StateDegraded), string(v1alpha1.StateFailed), string(v1alpha1.StateReleased),
}

// scope is the namespace to list, or empty for all namespaces.
func (c *cluster) scope(all bool) string {
	if all {
		return ""
	}
	return c.namespace
}

// list returns the DataCaches of a namespace, or of all if it is empty.
func (c *cluster) list(ctx context.Context, namespace string) (*v1alpha1.DataCacheList, error) {
	caches := &v1alpha1.DataCacheList{}
	if err := c.List(ctx, caches, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list DataCaches: %w", err)
	}
	return caches, nil
}

func printList(out io.Writer, caches []v1alpha1.DataCache, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tNAME\tSTATE\tLOADED\tROWS\tSIZE\tUSERS\tAGE")
	for i := range caches {
		dc := &caches[i]
		s := &dc.Status
		loaded, rows, size := "", "", ""
		if s.LoadedPercent != nil {
			loaded = fmt.Sprintf("%d%%", *s.LoadedPercent)
		}
		if s.Rows != nil {
			rows = humanize.Comma(*s.Rows)
		}
		if s.Bytes != nil {
			size = words.Bytes(float64(*s.Bytes))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", dc.Namespace, dc.Name, s.State, loaded, rows, size, s.Users, duration.HumanDuration(now.Sub(dc.CreationTimestamp.Time)))
	}
	return table.Flush()
}

func statusCommand(at *target) *cobra.Command {
	watching := false
	cmd := &cobra.Command{
		Use: "status NAME", Short: "Show a cache: state and reason, table, progress, users",
		Args: one("cache"), ValidArgsFunction: at.caches,
	}
	output := outputFlag(cmd)
	cmd.Flags().BoolVarP(&watching, "watch", "w", false, "print a line for each change until the cache is deleted")
	cmd.MarkFlagsMutuallyExclusive("watch", "output")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := at.reach()
		if err != nil {
			return err
		}
		dc, err := c.cache(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if *output != "" {
			return output.printObject(cmd.OutOrStdout(), dc, c)
		}
		printStatus(cmd.OutOrStdout(), dc)
		if !watching {
			return nil
		}
		return c.watch(cmd.Context(), dc, cmd.OutOrStdout())
	}
	return cmd
}

func printStatus(out io.Writer, dc *v1alpha1.DataCache) {
	s := &dc.Status
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(out, "%-12s%s\n", name, indented(value, 12))
		}
	}
	line("cache", dc.Namespace+"/"+dc.Name)
	line("state", stateOf(dc))
	line("not read", view.Of(dc).Why)
	switch {
	case dc.Spec.Arrow != nil:
		kind, data, _ := strings.Cut(dc.Spec.Arrow.Data(), " ")
		line(kind, data)
		line("snapshot", s.Snapshot)
		line("columns", strings.Join(dc.Spec.Arrow.Columns, ", "))
		line("filter", ptr.Deref(dc.Spec.Arrow.Filter, ""))
	case dc.Spec.Fluid != nil:
		for _, mount := range dc.Spec.Fluid.Mounts {
			line("files", mount.MountPoint)
		}
	}
	if s.Rows != nil && s.Bytes != nil {
		where := "in memory"
		if dc.Spec.Arrow != nil && dc.Spec.Arrow.Spill != nil {
			where = "on disk" // the command top says what of it is in memory
		}
		line(where, fmt.Sprintf("%s rows, %s", humanize.Comma(*s.Rows), words.Bytes(float64(*s.Bytes))))
	}
	line("endpoint", s.Endpoint)
	line("used by", strings.Join(s.UsedBy, ", "))
	if more := int(s.Users) - len(s.UsedBy); more > 0 {
		line("", fmt.Sprintf("and %d more", more))
	}
	if s.LastFailure != nil {
		line("failed", fmt.Sprintf("%d times, last at %s: %s", s.LastFailure.Count, s.LastFailure.Time.Format(time.RFC3339), s.LastFailure.Message))
	}
}

// stateOf is a cache's state with its reason and percent.
func stateOf(dc *v1alpha1.DataCache) string {
	is := view.Of(dc)
	text := string(is.State)
	if dc.Status.LoadedPercent != nil && is.State != v1alpha1.StateReady {
		text += fmt.Sprintf(" %d%%", *dc.Status.LoadedPercent)
	}
	if is.Reason != "" {
		text += ": " + is.Reason
	}
	return text + ": " + is.Message
}

// watchPause is the time between two watches, so that an API server that ends each at once is not flooded.
const watchPause = time.Second

// watch prints the cache's state whenever it changes, until the cache is deleted or ctx ends. It survives the end of a watch: the API
// server ends each after some minutes, and at once if it no longer has the version at which the watch begins (410 Gone).
func (c *cluster) watch(ctx context.Context, dc *v1alpha1.DataCache, out io.Writer) error {
	say := func(what string) { printChange(out, time.Now(), what) }
	last := stateOf(dc)
	observe := func(now *v1alpha1.DataCache) {
		if is := stateOf(now); is != last {
			last = is
			say(is)
		}
	}
	for first := dc.UID; ; observe(dc) {
		deleted, err := c.follow(ctx, dc, observe)
		if err == nil && !deleted {
			select {
			case <-time.After(watchPause):
			case <-ctx.Done():
			}
			if dc, err = c.cache(ctx, dc.Name); apierrors.IsNotFound(err) || err == nil && dc.UID != first {
				deleted, err = true, nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the user ended it
		case deleted:
			say("deleted")
			return nil
		case err != nil:
			return err
		}
	}
}

func printChange(out io.Writer, at time.Time, what string) {
	fmt.Fprintln(out, at.Format(time.TimeOnly), indented(what, 9))
}

// follow calls observe with each version after dc, until the API server ends the watch or the cache is deleted.
func (c *cluster) follow(ctx context.Context, dc *v1alpha1.DataCache, observe func(*v1alpha1.DataCache)) (deleted bool, err error) {
	after := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: dc.ResourceVersion}}
	watcher, err := c.Watch(ctx, &v1alpha1.DataCacheList{}, client.InNamespace(dc.Namespace), client.MatchingFields{"metadata.name": dc.Name}, after)
	if err != nil {
		return false, fmt.Errorf("watch DataCache %s/%s: %w", dc.Namespace, dc.Name, err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		now, ok := event.Object.(*v1alpha1.DataCache)
		switch {
		case !ok && event.Type == apiwatch.Error:
			if err := apierrors.FromObject(event.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				return false, fmt.Errorf("watch DataCache %s/%s: %w", dc.Namespace, dc.Name, err)
			}
			return false, nil
		case event.Type == apiwatch.Deleted:
			return true, nil
		case ok:
			observe(now)
		}
	}
	return false, nil
}
