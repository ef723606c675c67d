// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/internal/doctor"
)

func doctorCommand(at *target) *cobra.Command {
	d := doctor.Doctor{}
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check whether the cluster and the namespace have what caches need",
		Long: `Check whether the cluster and the namespace have what caches need: kinds, manager, webhook and its certificate, rights,
quotas, admission, storage classes; and, by two pods of the namespace that run for at most 3 minutes, images, DNS, network
and whether NetworkPolicies are enforced. What it creates it deletes, also after Ctrl-C; if it is killed, the cluster does.

The exit code is 0 if nothing fails, 2 if something does, 3 if nothing does but not all could be looked at, and 1
after an error.`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	output := outputFlag(cmd)
	cmd.Flags().BoolVar(&d.Pods, "pods", true, "start two pods; false asks the API server only")
	cmd.Flags().DurationVar(&d.Patience, "patience", time.Minute, "how long a pod may take to start")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := at.reach()
		if err != nil {
			return err
		}
		d.Client, d.Namespace, d.Log = c, c.namespace, c.lines
		findings, err := d.Examine(cmd.Context())
		if *output != "" {
			err = errors.Join(err, output.print(cmd.OutOrStdout(), findings))
		} else {
			printFindings(cmd.OutOrStdout(), findings, "FAILS")
		}
		if err != nil {
			return err
		}
		return verdict(findings)
	}
	return cmd
}
