// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
)

// TestSampleClient uses the SDK's own initializer, and two pods that only know the protocol of Kubeflow's enhancement proposal 2655: they send no
// token, and our runtime of the proposal lets them read.
func TestSampleClient(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	installOurs(t, ns)
	j := cacheJob("sample", reviews.write(t), 2, "sample_client")
	j.Runtime = withCache
	r := train(t, ns, j)
	r.ends(t, trainer.TrainJobComplete)
	s := r.look(t)
	if s.Status != "Complete" {
		t.Errorf("the SDK says that the TrainJob is %s, want Complete", s.Status)
	}
	readOnce(t, r, s, 2, reviews.Rows)
}

// readOnce checks that the ranks together got each row of the table exactly once, in equal shares, and logs the throughput.
func readOnce(t *testing.T, r *run, s sdkView, ranks, rows int) {
	t.Helper()
	var all []int64
	for rank := range ranks {
		got := 0
		for _, line := range parse(t, s.Logs[fmt.Sprintf("node-%d", rank)]) {
			all = append(all, line.IDs...)
			got += len(line.IDs)
			if line.FirstBatch > 0 {
				t.Logf("rank %d: first batch %.1f s after the TrainJob was created", rank, line.FirstBatch-float64(r.created.Unix()))
			}
			if line.Seconds > 0 {
				t.Logf("rank %d: %d rows in %.2f s", rank, line.Rows, line.Seconds)
			}
		}
		if low, high := rows/ranks, (rows+ranks-1)/ranks; got < low || got > high {
			t.Errorf("rank %d got %d rows, want %d to %d", rank, got, low, high)
		}
	}
	eachOnce(t, all, rows)
}

// eachOnce checks that ids are 0..rows-1 in any order.
func eachOnce(t *testing.T, ids []int64, rows int) {
	t.Helper()
	ids = slices.Sorted(slices.Values(ids))
	if len(ids) != rows {
		t.Errorf("training got %d rows, want %d", len(ids), rows)
	}
	for i, id := range ids {
		if id != int64(i) {
			t.Errorf("row %d is missing or came twice: the %d. id in order is %d", i, i, id)
			return
		}
	}
}
