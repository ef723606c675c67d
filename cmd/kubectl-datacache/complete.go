// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// caches completes the first argument with the names of the namespace's DataCaches.
func (t *target) caches(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return t.first(&v1alpha1.DataCacheList{})(cmd, args, typed)
}

// first completes the first argument with the names of the objects of the list's kind.
func (t *target) first(list client.ObjectList) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return t.names(cmd, list)
	}
}

// names returns the names of the objects of the list's kind: of the namespace, unless the kind has none.
func (t *target) names(cmd *cobra.Command, list client.ObjectList, options ...client.ListOption) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := t.reach()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	if _, global := list.(*corev1.NamespaceList); !global {
		options = append(options, client.InNamespace(c.namespace))
	}
	if err := c.List(cmd.Context(), list, options...); err != nil {
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

// completeFlags completes the values of the flags that all commands have.
func (t *target) completeFlags(root *cobra.Command) {
	complete(root, "namespace", func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return t.names(cmd, &corev1.NamespaceList{})
	})
	complete(root, "context", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		config, err := t.loader().RawConfig()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.Sorted(maps.Keys(config.Contexts)), cobra.ShellCompDirectiveNoFileComp
	})
}

// servers completes --server with roles and with the names of the cache's pods.
func (t *target) servers(roles ...cobra.Completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return roles, cobra.ShellCompDirectiveNoFileComp
		}
		pods, directive := t.names(cmd, &corev1.PodList{}, client.MatchingLabels{wellknown.LabelCache: args[0]})
		return slices.Concat(roles, pods), directive
	}
}

// complete registers the completion of a flag's values. It panics if there is no such flag.
func complete(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err)
	}
}
