// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/kubeflow/datacache/test/kit/pagetest"
)

func TestReference(t *testing.T) {
	const intro = `The control plane beside a stock Kubeflow Trainer, and that of scratch volumes. [Install](../install.md) and
[scratch volumes](../scratch-volumes.md) say how to use it. A flag that is not given takes the value of its environment variable.`
	pagetest.Check(t, "../../docs/reference/manager.md", pagetest.Commands(command(func(string) string { return "" }), intro))
}
