// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/kubeflow/datacache/test/kit/pagetest"
)

func TestReference(t *testing.T) {
	const intro = "The object cache. [The object cache](../object-cache.md) and [mirrors](../mirrors.md) say how to use it.\n\n" +
		"A flag that is not given takes the value of its environment variable."
	pagetest.Check(t, "../../docs/reference/objectcache.md", pagetest.Commands(root(func(string) string { return "" }), intro))
}
