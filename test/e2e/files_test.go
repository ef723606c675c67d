// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
)

// TestFolder trains from a folder of Parquet files.
func TestFolder(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	plain := reviews
	plain.Plain = true
	j := cacheJob("folder", "", 2, "loader")
	j.Initializer = "Arrow"
	j.Dataset = map[string]any{
		"source": plain.write(t), "cluster_size": 3,
		"head_cpu": "50m", "head_mem": "128Mi", "worker_cpu": "50m", "worker_mem": "256Mi",
	}
	r := train(t, ns, j)
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 2, reviews.Rows)
}
