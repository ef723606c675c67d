// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeflow/datacache/internal/diagnose"
)

func whyCommand(at *target) *cobra.Command {
	cmd := &cobra.Command{
		Use: "why TRAINJOB", Short: "Say what a TrainJob waits for, and what to do about it",
		Args: cobra.ExactArgs(1), ValidArgsFunction: at.first(&trainer.TrainJobList{}),
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := at.reach()
		if err != nil {
			return err
		}
		findings, err := diagnose.Why(cmd.Context(), c, types.NamespacedName{Namespace: c.namespace, Name: args[0]})
		if *output != "" {
			return errors.Join(err, output.print(cmd.OutOrStdout(), findings))
		}
		printFindings(cmd.OutOrStdout(), findings)
		return err
	}
	return cmd
}

func printFindings(out io.Writer, findings []diagnose.Finding) {
	for _, f := range findings {
		mark := "ok   "
		if f.Blocks {
			mark = "WAITS"
		}
		fmt.Fprintf(out, "%s  %s: %s\n", mark, f.Subject, f.State)
		if f.Fix != "" {
			fmt.Fprintf(out, "       fix: %s\n", f.Fix)
		}
	}
}
