// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// one checks that a command has one argument, the name of an object of the kind.
func one(kind string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return fmt.Errorf("%s: name one %s, there are %d names: kubectl datacache %s", cmd.Name(), kind, len(args), cmd.Use)
	}
}

// explain adds to an error of the API server what a user can do about it.
func explain(err error) error {
	missing := (*meta.NoKindMatchError)(nil)
	if errors.As(err, &missing) {
		return fmt.Errorf("the cluster has no kind %s: datacache or Kubeflow Trainer isn't installed there (docs/install.md), or --context names another cluster than you mean: %w", missing.GroupKind.Kind, err)
	}
	status := apierrors.APIStatus(nil)
	if errors.As(err, &status) && apierrors.IsNotFound(err) && status.Status().Details != nil {
		switch status.Status().Details.Kind {
		case "datacaches":
			return fmt.Errorf("%w: `kubectl datacache list -A` shows all caches", err)
		case "trainjobs":
			return fmt.Errorf("%w: `kubectl get trainjobs -A` shows all TrainJobs", err)
		}
	}
	return err
}

// printNone says that a list is empty.
func printNone(out io.Writer, namespace string) {
	if namespace == "" {
		fmt.Fprintln(out, "There are no such caches.")
		return
	}
	fmt.Fprintf(out, "There are no such caches in namespace %s; -A lists those of all namespaces.\n", namespace)
}
