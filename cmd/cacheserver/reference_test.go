// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/kubeflow/datacache/test/kit/pagetest"
)

func TestReference(t *testing.T) {
	const intro = `The data plane: heads, data nodes, and the step that waits for a cache.
[Run, size and watch a cache](../operate.md) says how to use it.

A flag that is not given takes the value of its environment variable. Secrets have variables only: ` + "`CACHE_SECRET`, which head and\n" +
		"data nodes share, and `CATALOG_TOKEN` or `CATALOG_CREDENTIAL` for the REST catalog. Credentials of object stores are found by each\n" +
		"cloud SDK's own chain (`AWS_*`, `GOOGLE_*`, `AZURE_*`)."
	pagetest.Check(t, "../../docs/reference/cacheserver.md", pagetest.Commands(root(func(string) string { return "" }), intro))
}
