// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stocktest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRuntimes lists the runtimes: an upgrade of Trainer that adds one makes it fail.
func TestRuntimes(t *testing.T) {
	var names []string
	for _, runtime := range Runtimes(t) {
		names = append(names, runtime.Name)
	}
	want := []string{
		"deepspeed-distributed", "jax-distributed", "mlx-distributed", "torch-distributed", "torch-distributed-with-cache",
		"torchtune-llama3.2-1b", "torchtune-llama3.2-3b", "torchtune-qwen2.5-1.5b", "xgboost-distributed",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("stock runtimes (-want +got):\n%s", diff)
	}
}
