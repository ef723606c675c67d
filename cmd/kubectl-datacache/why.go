// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeflow/datacache/internal/diagnose"
)

// whyPause is the time between two looks of why --watch.
const whyPause = 2 * time.Second

// The exit codes of why, beside 0 and 1.
var (
	errWaits  = &exitError{code: 2}
	errUnseen = &exitError{code: 3}
)

func whyCommand(at *target) *cobra.Command {
	cmd := &cobra.Command{
		Use: "why TRAINJOB", Short: "Say what a TrainJob waits for, and what to do about it",
		Long: `Say what a TrainJob waits for, and what to do about it.

The exit code is 0 if nothing blocks the TrainJob, 2 if something does, 3 if nothing does but
not all could be looked at, and 1 after an error.`,
		Args: one("TrainJob"), ValidArgsFunction: at.first(&trainer.TrainJobList{}),
	}
	output := outputFlag(cmd)
	watch := cmd.Flags().BoolP("watch", "w", false, "look again every 2 s and print what changed, until nothing blocks the TrainJob")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := at.reach()
		if err != nil {
			return err
		}
		key := types.NamespacedName{Namespace: c.namespace, Name: args[0]}
		var before []diagnose.Finding
		for {
			findings, err := diagnose.Why(cmd.Context(), c, c.lines, key)
			switch {
			case *output != "":
				err = errors.Join(err, output.print(cmd.OutOrStdout(), findings))
			case !slices.Equal(findings, before):
				printFindings(cmd.OutOrStdout(), findings, "WAITS")
			}
			if err != nil {
				return err
			}
			if !*watch || !diagnose.Blocked(findings) {
				return verdict(findings)
			}
			before = findings
			select {
			case <-cmd.Context().Done():
				return verdict(findings)
			case <-time.After(whyPause):
			}
		}
	}
	return cmd
}

// verdict is the exit code for findings.
func verdict(findings []diagnose.Finding) error {
	switch {
	case diagnose.Blocked(findings):
		return errWaits
	case slices.ContainsFunc(findings, func(f diagnose.Finding) bool { return f.Unseen }):
		return errUnseen
	}
	return nil
}

// lines returns the last lines of a container's log, and all of them if last is 0.
func (c *cluster) lines(ctx context.Context, pod types.NamespacedName, container string, last int64) (string, error) {
	options := &corev1.PodLogOptions{Container: container}
	if last > 0 {
		options.TailLines = &last
	}
	text, err := c.core.Pods(pod.Namespace).GetLogs(pod.Name, options).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the log of pod %s: %w", pod, err)
	}
	return string(text), nil
}

// printFindings prints what was found; blocks is the mark of what blocks, of five letters.
func printFindings(out io.Writer, findings []diagnose.Finding, blocks string) {
	for _, f := range findings {
		mark := "ok   "
		switch {
		case f.Blocks:
			mark = blocks
		case f.Unseen:
			mark = "?    "
		}
		fmt.Fprintf(out, "%s  %s: %s\n", mark, f.Subject, indented(f.State, 7))
		if f.Fix != "" {
			fmt.Fprintf(out, "       fix: %s\n", indented(f.Fix, 7))
		}
	}
}
