// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// number parses a number from the environment.
func number(t *testing.T, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestKillsAtRandom kills, stops and freezes heads and nodes at random times while clients read shares and epochs. A read may fail
// with a reason, but must never return wrong or missing rows; and after every disturbance the cache must become Ready again by
// itself. FAULTS_ROUNDS sets the number of disturbances.
func TestKillsAtRandom(t *testing.T) {
	t.Parallel()
	rounds := number(t, "FAULTS_ROUNDS", 3)
	seed := seedtest.Seed(t)
	c := running(t, big(t), 3)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var readers errgroup.Group
	reads := make([]reads, 4)
	for i := range reads {
		random := rand.New(rand.NewPCG(seed, uint64(i)+1))
		readers.Go(func() error { return c.readUntil(ctx, i, random, &reads[i]) })
	}

	random := rand.New(rand.NewPCG(seed, 0))
	for round := range rounds {
		time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
		c.blow(round, random)
		for random.IntN(3) == 0 { // and possibly again while it recovers
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
			c.blow(round, random)
		}
		c.await(protocol.StateReady, "")
		c.servesAll(1 + random.IntN(5))
	}
	time.Sleep(300 * time.Millisecond)
	stop()
	if err := readers.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range reads {
		t.Logf("reader %d: %d whole reads, %d that broke off for a reason", i, reads[i].whole.Load(), reads[i].broken.Load())
		if reads[i].whole.Load() == 0 {
			t.Errorf("reader %d never read anything whole", i)
		}
	}
}

// reads counts the complete and the failed reads.
type reads struct{ whole, broken atomic.Int64 }

// blow disturbs one process and restores it.
func (c *cluster) blow(round uint64, random *rand.Rand) {
	c.t.Helper()
	target := random.IntN(len(c.nodes) + 1)
	p, back := c.head, func() { c.startHead() }
	if target < len(c.nodes) {
		p, back = c.nodes[target], func() { c.startNode(target) }
	}
	down := time.Duration(random.IntN(500)) * time.Millisecond
	switch kind := random.IntN(4); kind {
	case 0:
		c.t.Logf("round %d: freeze %s for %s", round, p.name, down)
		p.signal(syscall.SIGSTOP)
		time.Sleep(down)
		p.signal(syscall.SIGCONT)
	case 1:
		c.t.Logf("round %d: stop %s", round, p.name)
		p.signal(syscall.SIGTERM)
		p.exit()
		back()
	default:
		c.t.Logf("round %d: kill %s for %s", round, p.name, down)
		p.kill()
		time.Sleep(down)
		back()
	}
}

// readUntil reads shares and epochs until ctx ends. It returns the first error that no fault excuses.
func (c *cluster) readUntil(ctx context.Context, i int, random *rand.Rand, count *reads) error {
	for ctx.Err() == nil {
		one := c.readShare
		if i%2 == 0 {
			one = c.readEpoch
		}
		readCtx, cancel := context.WithTimeout(ctx, deadline.Limit())
		err := one(readCtx, random)
		cancel()
		time.Sleep(30 * time.Millisecond) // leaves CPU time for other tests
		switch code := status.Code(err); {
		case err == nil:
			count.whole.Add(1)
		case ctx.Err() != nil:
		case errors.As(err, new(wrongRows)):
			return err
		case code == codes.Unavailable, code == codes.FailedPrecondition, code == codes.Unauthenticated:
			count.broken.Add(1)
		default:
			return err
		}
	}
	return nil
}

func (c *cluster) readShare(ctx context.Context, random *rand.Rand) error {
	total := 1 + random.IntN(20)
	index := random.IntN(total)
	got, err := c.shard(ctx, index, total)
	if err != nil {
		return err
	}
	lo, hi := epoch.Shard(uint64(index), uint64(total), uint64(c.lake.rows))
	if !slices.Equal(got, between(int64(lo), int64(hi))) {
		return wrongf("share %d of %d: rows %v", index, total, got)
	}
	return nil
}

func (c *cluster) readEpoch(ctx context.Context, random *rand.Rand) error {
	e := epoch.Epoch{Seed: random.Uint64(), Number: 1, Shuffle: true, Clump: 1 + random.Uint64N(8), GlobalBatch: 64, Tail: "keep"}
	world := 1 + random.Uint64N(8)
	_, err := c.wholeEpoch(ctx, e, epoch.Share{Rank: random.Uint64N(world), World: world, Workers: 1, StartStep: random.Uint64N(50)})
	return err
}
