// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import "fmt"

// Share selects the part of every step that one rank reads, and the steps that one of its workers reads.
//
// It is a plain value. The zero value is invalid: World and Workers must be at least 1.
type Share struct {
	Rank, World     uint64
	Worker, Workers uint64 // the worker reads the steps s with s mod Workers = Worker
	StartStep       uint64 // the first step to read; at or beyond the last step the share is empty
}

// Validate returns an error for the first invalid field, with its name on the wire, its value and the values allowed.
func (s Share) Validate() error {
	if s.World < 1 || s.World >= limit {
		return fmt.Errorf("world = %d: want 1 <= world < 2^62", s.World)
	}
	if s.Rank >= s.World {
		return fmt.Errorf("rank = %d: want 0 <= rank < world = %d", s.Rank, s.World)
	}
	if s.Workers < 1 || s.Workers >= limit {
		return fmt.Errorf("workers = %d: want 1 <= workers < 2^62", s.Workers)
	}
	if s.Worker >= s.Workers {
		return fmt.Errorf("worker = %d: want 0 <= worker < workers = %d", s.Worker, s.Workers)
	}
	return nil
}

// first is the worker's first step at or after StartStep; StartStep is below 2^62.
func (s Share) first() uint64 {
	return s.StartStep + (s.Worker+s.Workers-s.StartStep%s.Workers)%s.Workers
}

// Count is the number of positions in share s, padding included, in constant time. It is 0 if e or s is invalid.
func (e Epoch) Count(s Share) uint64 {
	if e.Validate() != nil || s.Validate() != nil {
		return 0
	}
	steps, full := e.steps(), e.fullSteps()
	if s.StartStep >= steps {
		return 0
	}
	var count uint64
	first := s.first()
	if first < full {
		lo, hi := Shard(s.Rank, s.World, e.GlobalBatch)
		count = ceil(full-first, s.Workers) * (hi - lo)
	}
	if last := steps - 1; last >= full && last%s.Workers == s.Worker {
		lo, hi := Shard(s.Rank, s.World, e.size(last))
		count += hi - lo
	}
	return count
}
