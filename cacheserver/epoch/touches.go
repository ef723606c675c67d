// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

// Touches reports in constant time whether a share of an epoch in order has positions of the rows [lo, hi). It ignores Shuffle. It is
// false if e or s is invalid.
func (e Epoch) Touches(s Share, lo, hi uint64) bool {
	hi = min(hi, e.Rows)
	if lo >= hi || e.Validate() != nil || s.Validate() != nil || s.StartStep >= e.steps() {
		return false
	}
	whole := e.Rows / e.GlobalBatch // steps of GlobalBatch positions that don't wrap
	from, to := Shard(s.Rank, s.World, e.GlobalBatch)
	if first := s.first(); from < to && first < whole {
		step := first
		if lo >= to {
			step = max(step, (lo-to)/e.GlobalBatch+1) // the first step whose share ends after lo
		}
		step += (s.Workers - (step-first)%s.Workers) % s.Workers
		if step < whole && step*e.GlobalBatch+from < hi {
			return true
		}
	}
	if whole == e.steps() || whole < s.StartStep || whole%s.Workers != s.Worker {
		return false
	}
	from, to = Shard(s.Rank, s.World, e.size(whole)) // of the last step, which is shorter or wraps
	from, to = from+whole*e.GlobalBatch, to+whole*e.GlobalBatch
	if from < to && from < hi && lo < min(to, e.Rows) {
		return true
	}
	from = max(from, e.Rows)
	if to <= from {
		return false
	}
	first, rows := from%e.Rows, to-from // of the positions that wrap, which may do so several times
	return rows >= e.Rows || first < hi && lo < first+rows || lo+e.Rows < first+rows
}
