// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/diagnose"
)

func whyCommand(at *target) *cobra.Command {
	return &cobra.Command{
		Use: "why TRAINJOB", Short: "Say what a TrainJob waits for, and what to do about it",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: at.names(func() client.ObjectList { return &trainer.TrainJobList{} }),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, namespace, err := at.client()
			if err != nil {
				return err
			}
			findings, err := diagnose.Why(cmd.Context(), c, types.NamespacedName{Namespace: namespace, Name: args[0]})
			printFindings(cmd.OutOrStdout(), findings)
			return err
		},
	}
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
