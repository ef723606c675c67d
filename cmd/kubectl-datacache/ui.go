// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/inject"
)

func uiCommand(at *target) *cobra.Command {
	port, server := 0, ""
	cmd := &cobra.Command{
		Use: "ui NAME", Short: "Serve a cache's page on this machine until Ctrl-C",
		Long: `Forwards a port of this machine to the head's page through the API server, and prints the page's address.
It needs the right to create pods/portforward, which the role edit has.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: at.caches,
	}
	cmd.Flags().IntVar(&port, "port", 0, "port of this machine; 0 takes a free one")
	cmd.Flags().StringVar(&server, "server", inject.RoleHead, "head, or the name of a data node's pod, which has a page too")
	complete(cmd, "server", at.servers(inject.RoleHead))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := at.reach()
		if err != nil {
			return err
		}
		pods, err := c.servers(cmd.Context(), client.ObjectKey{Namespace: c.namespace, Name: args[0]}, server)
		if err != nil {
			return err
		}
		f, err := c.forward(&pods[0], port)
		if err != nil {
			return err
		}
		defer f.stop()
		fmt.Fprintf(cmd.OutOrStdout(), "The page of pod %s is at http://%s/ until Ctrl-C.\n", pods[0].Name, f.address)
		select {
		case <-cmd.Context().Done():
			return nil
		case err := <-f.ended:
			return fmt.Errorf("pod %s: %w", pods[0].Name, err)
		}
	}
	return cmd
}
