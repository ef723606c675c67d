// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/test/kit/epochtest"
)

// epoch reads a rank's share of an epoch; after a failure it resumes at the row that it had reached.
func (r *reader) epoch(ctx context.Context) error {
	e := epoch.Epoch{
		Seed: r.random.Uint64() >> 1, Number: r.random.Uint64N(5), Shuffle: r.random.IntN(4) > 0, Clump: 1 + r.random.Uint64N(5),
		GlobalBatch: 1 + r.random.Uint64N(40), Tail: []epoch.Tail{epoch.Drop, epoch.Pad, epoch.Keep}[r.random.IntN(3)],
	}
	world := 1 + r.random.Uint64N(3)
	s := epoch.Share{Rank: r.random.Uint64N(world), World: world, Workers: 1}
	if r.random.IntN(3) == 0 {
		s.StartStep = r.random.Uint64N(6)
	}
	progress := epochProgress{}
	for tries := 0; ; tries++ {
		err := r.epochFrom(ctx, e, s, &progress)
		if err == nil || errors.As(err, new(inexcusable)) || !passing(err) || ctx.Err() != nil || tries == 20 {
			return err
		}
		r.count.resumed.Add(1)
		time.Sleep(time.Duration(200+r.random.IntN(800)) * time.Millisecond)
	}
}

// epochProgress is how far an epoch was read, and from which dataset.
type epochProgress struct {
	fingerprint string
	rows        uint64 // of the share's sequence, already read
}

func (r *reader) epochFrom(ctx context.Context, e epoch.Epoch, s epoch.Share, p *epochProgress) error {
	if lo, hi := epoch.Shard(s.Rank, s.World, e.GlobalBatch); hi > lo && p.fingerprint != "" {
		s.StartStep = p.rows / (hi - lo)
	}
	a, err := r.ask(ctx, map[string]any{
		"kind": "epoch", "seed": e.Seed, "epoch": e.Number, "shuffle": e.Shuffle, "clump": e.Clump, "global_batch": e.GlobalBatch,
		"tail": e.Tail, "rank": s.Rank, "world": s.World, "worker": s.Worker, "workers": s.Workers, "start_step": s.StartStep,
	})
	if err != nil {
		return err
	}
	if p.fingerprint != "" && p.fingerprint != a.metadata.Dataset.Fingerprint {
		*p = epochProgress{} // the cache has other rows now: start the epoch again
		return status.Error(codes.FailedPrecondition, "another dataset")
	}
	p.fingerprint = a.metadata.Dataset.Fingerprint
	e.Rows = uint64(len(a.version.rows))
	sequence, err := epochtest.Rows(e, s)
	if err != nil {
		return err
	}
	if a.info.GetTotalRecords() != int64(len(sequence)) {
		return inexcusablef("epoch: total_records %d, want %d", a.info.GetTotalRecords(), len(sequence))
	}
	return r.merge(ctx, a, sequence, e, s, p)
}

// merge reads every data node's stream and checks the sequence that they form together.
func (r *reader) merge(ctx context.Context, a answer, sequence []uint64, e epoch.Epoch, s epoch.Share, p *epochProgress) error {
	sources := map[assign.Bounds]*source{}
	for _, endpoint := range a.info.GetEndpoint() {
		bounds, err := a.boundsOf(endpoint)
		if err != nil {
			return err
		}
		if sources[bounds], err = r.open(ctx, endpoint); err != nil {
			return err
		}
	}
	where := fmt.Sprintf("epoch %+v of %+v", s, e)
	lo, hi := epoch.Shard(s.Rank, s.World, e.GlobalBatch)
	done := s.StartStep * (hi - lo)
	for _, index := range sequence {
		var from *source
		for bounds, source := range sources {
			if bounds[0] <= int64(index) && int64(index) < bounds[1] {
				from = source
			}
		}
		if from == nil {
			return inexcusablef("%s: row %d is of no endpoint", where, index)
		}
		if err := from.want(a.version.rows[index], where); err != nil {
			return err
		}
		done++
		p.rows = max(p.rows, done)
	}
	for _, source := range sources {
		if err := source.end(where); err != nil {
			return err
		}
	}
	return nil
}
