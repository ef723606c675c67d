// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/kubeflow/datacache/test/kit/pagetest"
)

func TestReference(t *testing.T) {
	const intro = `kubectl's plugin for caches. [kubectl datacache](../kubectl.md) says how to install it and shows what it prints.
The flags of the first table belong to every command.`
	pagetest.Check(t, "../../docs/reference/kubectl-datacache.md", pagetest.Commands(command(), intro))
}
