// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-datacache is kubectl's plugin for caches: kubectl datacache.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// target is the cluster and the namespace that kubectl's usual flags name.
type target struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func command() *cobra.Command {
	at := &target{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	root := &cobra.Command{
		Use:   "kubectl-datacache",
		Short: "See the caches of a cluster, and what a TrainJob waits for",
		Example: `  kubectl datacache list -A
  kubectl datacache status train --watch
  kubectl datacache why train`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl datacache"},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&at.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig file")
	clientcmd.BindOverrideFlags(&at.overrides, root.PersistentFlags(), clientcmd.RecommendedConfigOverrideFlags(""))
	root.AddCommand(listCommand(at), statusCommand(at), whyCommand(at))
	return root
}

// client returns a client for the cluster, and the namespace.
func (t *target) client() (client.WithWatch, string, error) {
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(t.rules, &t.overrides)
	namespace, _, err := config.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, trainer.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, "", err
		}
	}
	c, err := client.NewWithWatch(rest, client.Options{Scheme: scheme})
	if err != nil {
		return nil, "", fmt.Errorf("reach the cluster: %w", err)
	}
	return c, namespace, nil
}

// names completes the first argument with the names of the objects in the namespace.
func (t *target) names(newList func() client.ObjectList) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, namespace, err := t.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		list := newList()
		if err := c.List(cmd.Context(), list, client.InNamespace(namespace)); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []cobra.Completion
		err = meta.EachListItem(list, func(object runtime.Object) error {
			accessor, err := meta.Accessor(object)
			if err == nil {
				names = append(names, accessor.GetName())
			}
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
