// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/protocol"
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

// TestSchedules runs SOAK_SCHEDULES schedules, with consecutive seeds from SEED on, with SOAK_NODES data nodes or, without it, a few.
func TestSchedules(t *testing.T) {
	count := number(t, "SOAK_SCHEDULES", seedtest.Cases[uint64](8, 20))
	cryptotest.SetGlobalRandom(t, 0) // for the lakes' names and snapshots
	made := lakes(t)
	sum := &tally{events: map[string]int{}}
	began := time.Now()
	for i, seed := range seedtest.Seeds(t, count) {
		done := uint64(i) + 1
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, seed)
			synctest.Test(t, func(t *testing.T) { run(t, seed, made, sum) })
		}) {
			t.Fatalf("schedule %d of %d failed; again: SOAK_NODES=%s SEED=%d SOAK_SCHEDULES=1 go test ./test/soak -run TestSchedules", done, count, os.Getenv("SOAK_NODES"), seed)
		}
		if done%1000 == 0 && done < count {
			t.Logf("%d of %d schedules after %s", done, count, time.Since(began).Round(time.Second))
		}
	}
	took := time.Since(began).Seconds()
	t.Logf("%d schedules in %.1f s (%.1f a second): %s", count, took, float64(count)/took, sum)
}

// run runs one schedule: it starts a cache and causes faults while clients read; then the cache must become Ready again by itself and
// serve everything.
func run(t *testing.T, seed uint64, made []*lake, sum *tally) {
	random := rand.New(rand.NewPCG(seed, 0))
	log := &journal{began: time.Now()}
	defer func() {
		if t.Failed() {
			fmt.Println(log)
		}
	}()
	l, nodes, latency := made[random.IntN(len(made))], 1+random.IntN(3), 100*time.Microsecond+time.Duration(random.Int64N(int64(3*time.Millisecond)))
	if random.IntN(4) == 0 { // each part of the plan is kept by three of them
		nodes = 4 + random.IntN(3)
	}
	nodes = int(number(t, "SOAK_NODES", uint64(nodes)))
	log.note("table %s, %d data nodes, latency %s", l.name, nodes, latency)
	w := newWorld(t.Context(), t, newStore(seed, l), newNetwork(seed, latency), nodes, log)
	if random.IntN(2) == 0 { // with few attempts, longer faults reach the retries of head and node
		w.retry = objstore.Retry{Attempts: 2}
	}
	w.startHead()
	for i := range w.nodes {
		w.startNode(i)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group errgroup.Group
	shared := &truth{lake: l}
	w.enemy = w.hostile(shared)
	readers := make([]*reader, 2)
	for i := range readers {
		r := w.reader(i, shared, seed)
		readers[i] = r
		group.Go(func() error { return r.run(ctx) })
	}
	group.Go(func() error { return w.enemy.run(ctx) })
	for _, e := range draw(random, nodes, l.forged != nil) {
		w.live(e.at - time.Since(log.began))
		log.note("%s %s", e.kind, e.what)
		sum.events[e.kind]++
		e.do(w)
	}
	w.awaitReady()
	stop()
	if err := w.enemy.attacks.Wait(); err != nil {
		t.Error(err)
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if w.head.head.Report().State == protocol.StateReady {
		w.servesAll(w.reader(len(readers), shared, seed))
	}
	w.end()
	sum.add(readers)
}

// reader makes an honest client with its own host.
func (w *world) reader(i int, shared *truth, seed uint64) *reader {
	return &reader{host: w.net.host(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})), truth: shared, random: rand.New(rand.NewPCG(seed, 1+uint64(i)))}
}

// live lets time pass and checks the cache at intervals.
func (w *world) live(d time.Duration) {
	w.t.Helper()
	for ; d > 0 && !w.t.Failed(); d -= look {
		time.Sleep(min(d, look))
		w.supervise()
		w.check()
	}
}

const (
	// look is the interval at which the cache's state is checked.
	look = 250 * time.Millisecond
	// noticed is when every process must have noticed a fault: longer than a head lets a node be silent.
	noticed = 11 * time.Second
	// soon is when a cache must be Ready after the last fault has ended.
	soon = 2 * time.Minute
)

func (w *world) awaitReady() {
	w.t.Helper()
	w.live(noticed)
	for began := time.Now(); time.Since(began) < soon && !w.t.Failed(); w.live(look) {
		switch w.head.head.Report().State {
		case protocol.StateReady:
			w.staysReady()
			return
		case protocol.StateFailed:
			w.hasFreed()
			return
		}
	}
	if w.t.Failed() {
		return
	}
	s := w.head.head.Report()
	w.t.Errorf("%s after the last fault the cache is %s: %s", soon, s.State, s.Reason)
}

// staysReady keeps checking for longer than a node may be silent.
func (w *world) staysReady() {
	w.t.Helper()
	for began := time.Now(); time.Since(began) < noticed && !w.t.Failed(); w.live(look) {
		if s := w.head.head.Report(); s.State != protocol.StateReady {
			w.t.Errorf("without a fault the cache is %s: %s", s.State, s.Reason)
		}
	}
}

// hasFreed checks that the data nodes of a failed cache have no memory reserved, except for clients' connections.
func (w *world) hasFreed() {
	w.t.Helper()
	_ = w.enemy.attacks.Wait() // streams keep their rows until they end; run checks the error
	w.live(5 * time.Second)
	for _, p := range w.nodes {
		if held := p.budget.Used() - p.budget.Clients().Used(); held != 0 {
			w.t.Errorf("the cache failed, but %s has %d bytes reserved beside those of clients", p.name, held)
		}
	}
}

// servesAll reads everything in every way, which must not fail any more.
func (w *world) servesAll(r *reader) {
	w.t.Helper()
	if w.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, soon)
	defer cancel()
	shares := 1 + r.random.IntN(4)
	for i := range shares {
		if err := r.share(ctx, i, shares); err != nil {
			w.t.Errorf("the cache is Ready: %v", err)
		}
	}
	for _, read := range []func(context.Context) error{r.epoch, r.take} {
		if err := read(ctx); err != nil {
			w.t.Errorf("the cache is Ready: %v", err)
		}
	}
}

// tally sums up schedules.
type tally struct {
	events map[string]int
	counts
}

func (s *tally) add(readers []*reader) {
	for _, r := range readers {
		s.whole.Add(r.count.whole.Load())
		s.broken.Add(r.count.broken.Load())
		s.resumed.Add(r.count.resumed.Load())
		s.rows.Add(r.count.rows.Load())
	}
}

func (s *tally) String() string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(s.events)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", s.events[kind], kind))
	}
	return fmt.Sprintf("events: %s; reads: %d whole, %d broken off, %d resumed; %d rows checked",
		strings.Join(kinds, ", "), s.whole.Load(), s.broken.Load(), s.resumed.Load(), s.rows.Load())
}
