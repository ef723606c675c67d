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

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

func eventsCommand(at *target) *cobra.Command {
	cmd := &cobra.Command{
		Use: "events NAME", Short: "Print what happened to a cache, its pods and its TrainJobs, in the order of time",
		Args: one("cache"), ValidArgsFunction: at.caches,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := at.reach()
		if err != nil {
			return err
		}
		events, closed, err := c.events(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		for _, namespace := range closed {
			fmt.Fprintf(cmd.ErrOrStderr(), "left out: TrainJobs of namespace %s, of which you may not list events\n", namespace)
		}
		if *output != "" {
			return output.printObject(cmd.OutOrStdout(), events, c)
		}
		return printEvents(cmd.OutOrStdout(), events.Items, time.Now())
	}
	return cmd
}

// events returns the events of a cache, of its objects and pods, and of the TrainJobs that use it, and the namespaces of TrainJobs of
// which the user may not list events.
func (c *cluster) events(ctx context.Context, name string) (found *corev1.EventList, closed []string, err error) {
	key := client.ObjectKey{Namespace: c.namespace, Name: name}
	users := sets.New(key.String()) // a TrainJob's own cache has its name
	dc := &v1alpha1.DataCache{}
	switch err := c.Get(ctx, key, dc); {
	case apierrors.IsNotFound(err): // if there is a TrainJob, its events say why
		if jobErr := c.Get(ctx, key, &trainer.TrainJob{}); jobErr != nil {
			return nil, nil, fmt.Errorf("get DataCache %s: %w", key, err)
		}
	case err != nil:
		return nil, nil, fmt.Errorf("get DataCache %s: %w", key, err)
	}
	users.Insert(dc.Status.UsedBy...)
	namespaces := sets.New(c.namespace)
	for user := range users {
		namespace, _, _ := strings.Cut(user, "/")
		namespaces.Insert(namespace)
	}
	found = &corev1.EventList{}
	for _, namespace := range sets.List(namespaces) {
		var all corev1.EventList
		switch err := c.List(ctx, &all, client.InNamespace(namespace)); {
		case apierrors.IsForbidden(err) && namespace != c.namespace:
			closed = append(closed, namespace)
		case err != nil:
			return nil, nil, fmt.Errorf("list the events of namespace %s: %w", namespace, err)
		}
		found.Items = append(found.Items, slices.DeleteFunc(all.Items, func(e corev1.Event) bool { return !concerns(&e, key, users) })...)
	}
	slices.SortStableFunc(found.Items, func(a, b corev1.Event) int { return lastSeen(&a).Compare(lastSeen(&b)) })
	return found, closed, nil
}

// concerns reports whether an event is about a cache, an object of it, or one of its users.
func concerns(e *corev1.Event, cache client.ObjectKey, users sets.Set[string]) bool {
	about := e.InvolvedObject
	if about.Kind == trainer.TrainJobKind {
		return users.Has(about.Namespace + "/" + about.Name)
	}
	if about.Namespace != cache.Namespace {
		return false
	}
	if about.Kind == "DataCache" {
		return about.Name == cache.Name
	}
	// Objects and pods of a cache bear its name, also those that are gone: wellknown.CacheName(cache) and, below it, pods' ordinals.
	rest, found := strings.CutPrefix(about.Name, wellknown.CacheName(cache.Name))
	return found && strings.Trim(rest, "-0123456789") == ""
}

// lastSeen is when an event happened last.
func lastSeen(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

func printEvents(out io.Writer, events []corev1.Event, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "LAST SEEN\tTYPE\tREASON\tOBJECT\tMESSAGE")
	for i := range events {
		e := &events[i]
		times := ""
		if e.Count > 1 {
			times = fmt.Sprintf(" (x%d)", e.Count)
		}
		fmt.Fprintf(table, "%s%s\t%s\t%s\t%s/%s\t%s\n", duration.HumanDuration(now.Sub(lastSeen(e))), times, e.Type, e.Reason,
			strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name, strings.Join(strings.Fields(e.Message), " "))
	}
	return table.Flush()
}
