// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/kubeflow/datacache/cacheserver/node"
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

// TestKillsAtRandom kills, stops and freezes heads and nodes, each after a client has received a random number of rows of an epoch, or while it
// recovers, after it has loaded a random number of splits. Other clients read shares and epochs all the time. A read may fail with a reason, but
// must never return wrong or missing rows; and after every disturbance the cache must become Ready again by itself. FAULTS_ROUNDS sets the number
// of disturbances.
func TestKillsAtRandom(t *testing.T) {
	t.Parallel()
	rounds := number(t, "FAULTS_ROUNDS", 3)
	seed := seedtest.Seed(t)
	c := running(t, big(t), 3)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	readers, ctx := errgroup.WithContext(ctx)
	reads := make([]reads, 4)
	for i := range reads {
		random := rand.New(rand.NewPCG(seed, uint64(i)+1))
		readers.Go(func() error { return c.readUntil(ctx, i, random, &reads[i]) })
	}

	random := rand.New(rand.NewPCG(seed, 0))
	for round := range rounds {
		c.strikeEpoch(round, random)
		for random.IntN(2) == 0 { // and possibly again while it recovers
			c.strikeLoad(round, random)
		}
		c.await(protocol.StateReady)
		c.servesAll(1 + random.IntN(5))
	}
	for i := range reads {
		before := reads[i].whole.Load()
		deadline.Eventually(t, func() error {
			if reads[i].whole.Load() == before && ctx.Err() == nil {
				return fmt.Errorf("reader %d has read nothing whole since the cache is Ready", i)
			}
			return nil
		})
	}
	stop()
	if err := readers.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range reads {
		t.Logf("reader %d: %d whole reads, %d that broke off for a reason", i, reads[i].whole.Load(), reads[i].broken.Load())
	}
}

// reads counts the complete and the failed reads.
type reads struct{ whole, broken atomic.Int64 }

// blow is a disturbance of a process.
type blow string

// blows are all of them; a kill is as likely as the others together.
var blows = []blow{"kill", "kill", "stop", "freeze"}

// target draws a process, and returns it and a function that starts it again. It is a data node or, if index is -1, the head.
func (c *cluster) target(random *rand.Rand) (p *process, index int, again func()) {
	c.t.Helper()
	if index = random.IntN(len(c.nodes)+1) - 1; index < 0 {
		return c.head, index, func() { c.startHead() }
	}
	return c.nodes[index], index, func() { c.startNode(index) }
}

// strike disturbs a process and restores it; then begins once it does not work any more, or has been told to stop.
func (b blow) strike(p *process, again, then func()) {
	p.t.Helper()
	switch b {
	case "freeze":
		p.freeze()
		then()
		p.signal(syscall.SIGCONT)
	case "stop":
		p.signal(syscall.SIGTERM)
		then()
		p.exit()
		again()
	default:
		p.kill()
		then()
		again()
	}
}

// strikeEpoch disturbs a process while a client has received a part of an epoch that all data nodes send. The rest comes, unless a data node was
// killed.
func (c *cluster) strikeEpoch(round uint64, random *rand.Rand) {
	c.t.Helper()
	e := epoch.Epoch{Seed: random.Uint64(), Number: 1, Shuffle: true, Clump: 1, GlobalBatch: 64, Tail: "keep"}
	ctx, done := context.WithCancel(deadline.Context(c.t)) // data nodes that are told to stop wait for the end of streams
	defer done()
	read, err := c.epoch(ctx, e, epoch.Share{World: 1, Workers: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	rows := 1 + random.IntN(c.lake.rows/4) // so that each data node has more to send than connections hold
	if _, err := read.take(rows); err != nil {
		c.t.Fatal(err)
	}
	p, index, again := c.target(random)
	kind := blows[random.IntN(len(blows))]
	c.t.Logf("round %d: %s %s after row %d", round, kind, p.name, rows)
	rest := make(chan error, 1)
	kind.strike(p, again, func() {
		go func() {
			_, err := read.take(c.lake.rows)
			rest <- err
		}()
	})
	err = deadline.Receive(c.t, rest, "the rest of the epoch")
	if struck := kind == "kill" && index >= 0; struck && status.Code(err) != codes.Unavailable || !struck && !errors.Is(err, io.EOF) {
		c.t.Fatalf("%s %s after row %d: the rest of the epoch ended with %v", kind, p.name, rows, err)
	}
}

// strikeLoad disturbs a process of a cache that recovers: a data node after it has loaded a number of its splits.
func (c *cluster) strikeLoad(round uint64, random *rand.Rand) {
	c.t.Helper()
	p, index, again := c.target(random)
	kind, splits := blows[random.IntN(len(blows))], random.IntN(bigRows/bigGroup*bigFiles/len(c.nodes))
	c.t.Logf("round %d: %s %s after split %d, while the cache recovers", round, kind, p.name, splits)
	deadline.Eventually(c.t, func() error {
		if index < 0 {
			_, err := statusOf[protocol.Status](p)
			return err
		}
		s, err := statusOf[node.Status](p)
		if err == nil && s.Splits.Done < splits {
			err = fmt.Errorf("%s has loaded %d splits, want %d", p.name, s.Splits.Done, splits)
		}
		return err
	})
	kind.strike(p, again, func() {})
}

// readUntil reads shares and epochs until ctx ends. It returns the first error that no fault excuses.
func (c *cluster) readUntil(ctx context.Context, i int, random *rand.Rand, count *reads) error {
	for ctx.Err() == nil {
		one := c.readShare
		if i%2 == 0 {
			one = c.readEpoch
		}
		err := one(ctx, random)
		time.Sleep(30 * time.Millisecond) //nolint:forbidigo // clients that are refused leave processor time for a cache that recovers
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
