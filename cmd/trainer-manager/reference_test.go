// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/kubeflow/datacache/test/kit/pagetest"
)

func TestReference(t *testing.T) {
	const intro = `Kubeflow Trainer with datacache compiled in: one manager in place of two ([Install](../install.md#1-choose)). It takes every
flag of Trainer's own manager, also with one dash.`
	pagetest.Check(t, "../../docs/reference/trainer-manager.md", pagetest.Commands(command(func(string) string { return "" }), intro))
}
