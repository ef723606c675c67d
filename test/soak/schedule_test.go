// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kubeflow/datacache/cacheserver/assign"
)

// event is one event of a schedule.
type event struct {
	at   time.Duration // since the schedule began
	kind string
	what string
	do   func(*world)
}

// schedule generates events. All faults have ended at its last event.
type schedule struct {
	random *rand.Rand
	nodes  int
	events []event
}

// faults are the kinds of faults; those listed several times are more frequent.
var faults = []struct {
	kind string
	draw func(s *schedule, at time.Duration)
}{
	{"kill", (*schedule).kill}, {"kill", (*schedule).kill}, {"kill", (*schedule).kill},
	{"stop", (*schedule).stop},
	{"kill several", (*schedule).killSeveral},
	{"kill keepers", (*schedule).killKeepers}, {"kill keepers", (*schedule).killKeepers},
	{"freeze", (*schedule).freeze},
	{"slow host", (*schedule).slow},
	{"cut connections", (*schedule).cut}, {"cut connections", (*schedule).cut},
	{"move the table", (*schedule).move}, {"move the table", (*schedule).move},
	{"store", (*schedule).ail}, {"store", (*schedule).ail},
	{"attack", (*schedule).attack}, {"attack", (*schedule).attack}, {"attack", (*schedule).attack},
	{"intruder", (*schedule).intrude},
}

// draw generates a schedule's events, in order of time. forgeable says that the lake has forged data files.
func draw(random *rand.Rand, nodes int, forgeable bool) []event {
	s := &schedule{random: random, nodes: nodes}
	for range 1 + random.IntN(7) {
		faults[random.IntN(len(faults))].draw(s, s.time())
	}
	if forgeable && random.IntN(2) == 0 {
		s.tamper(s.within(12 * time.Second))
	}
	slices.SortStableFunc(s.events, func(a, b event) int { return int(a.at - b.at) })
	return s.events
}

// time is when a fault begins: during the first load, or later.
func (s *schedule) time() time.Duration {
	most := []time.Duration{60 * time.Millisecond, 500 * time.Millisecond, 12 * time.Second, 12 * time.Second}
	return s.within(most[s.random.IntN(len(most))])
}

// within is a random duration below most.
func (s *schedule) within(most time.Duration) time.Duration {
	return time.Duration(s.random.Int64N(int64(most)))
}

// pause is how long a fault lasts: shorter than a node may be silent, or longer.
func (s *schedule) pause() time.Duration {
	if s.random.IntN(3) == 0 {
		return 8*time.Second + s.within(8*time.Second)
	}
	return s.within(2 * time.Second)
}

// any is the number of a process: data nodes from 0 on, then the head.
func (s *schedule) any() int { return s.random.IntN(s.nodes + 1) }

func (s *schedule) add(at time.Duration, kind, what string, do func(*world)) {
	s.events = append(s.events, event{at, kind, what, do})
}

func (s *schedule) kill(at time.Duration) { s.killOne(s.any(), at) }

func (s *schedule) killOne(i int, at time.Duration) {
	vanish := s.random.IntN(3) == 0
	s.add(at, "kill", fmt.Sprintf("process %d, vanish %v", i, vanish), func(w *world) { w.killNumber(i, vanish) })
	s.add(at+s.pause(), "start", fmt.Sprintf("process %d", i), func(w *world) { w.startNumber(i) })
}

func (s *schedule) killSeveral(at time.Duration) {
	for i := range s.nodes + 1 {
		if s.random.IntN(2) == 0 {
			s.killOne(i, at+s.within(20*time.Millisecond))
		}
	}
}

// killKeepers ends the head and the three data nodes that keep a part of the plan.
func (s *schedule) killKeepers(at time.Duration) {
	first := s.random.IntN(s.nodes)
	for _, i := range append(assign.Keepers(first, s.nodes), s.nodes) {
		s.killOne(i, at+s.within(20*time.Millisecond))
	}
}

func (s *schedule) stop(at time.Duration) {
	i := s.any()
	s.add(at, "stop", fmt.Sprintf("process %d", i), func(w *world) { w.stopNumber(i) })
	s.add(at+s.pause(), "start", fmt.Sprintf("process %d", i), func(w *world) { w.startNumber(i) })
}

func (s *schedule) freeze(at time.Duration) {
	i := s.any()
	s.add(at, "freeze", fmt.Sprintf("process %d", i), func(w *world) { w.hostOf(i).freeze(true) })
	s.add(at+s.pause(), "thaw", fmt.Sprintf("process %d", i), func(w *world) { w.hostOf(i).freeze(false) })
}

func (s *schedule) slow(at time.Duration) {
	i, pace := s.any(), s.within(200*time.Millisecond)
	s.add(at, "slow", fmt.Sprintf("process %d, %s a KiB", i, pace), func(w *world) { w.hostOf(i).slow(pace) })
	s.add(at+s.pause(), "fast", fmt.Sprintf("process %d", i), func(w *world) { w.hostOf(i).slow(0) })
}

func (s *schedule) cut(at time.Duration) {
	for range 1 + s.random.IntN(4) {
		i, chosen := s.any(), s.random.Uint64()
		s.add(at, "cut", fmt.Sprintf("a connection of process %d", i), func(w *world) { w.hostOf(i).cut(rand.New(rand.NewPCG(chosen, 0))) })
		at += s.within(300 * time.Millisecond)
	}
}

// move publishes the table's next version. It may remove the old metadata file if every row is in memory: data nodes that are lost
// later could not load their rows again, so none is ended from then on.
func (s *schedule) move(at time.Duration) {
	drop := s.random.IntN(3) == 0
	s.add(at, "move", fmt.Sprintf("the table, drop %v", drop), func(w *world) {
		drop := drop && w.allLoaded()
		w.spared = w.spared || drop
		w.store.publish(drop)
	})
}

// ail makes the store fail for a while.
func (s *schedule) ail(at time.Duration) {
	t := []trouble{refuses, stalls, truncate}[s.random.IntN(3)]
	share := 0.1 + 0.9*s.random.Float64()
	s.add(at, "store", fmt.Sprintf("%s to %.0f %%", t, 100*share), func(w *world) { w.store.ail(t, share) })
	d := s.pause()
	if s.random.IntN(6) == 0 { // longer than reads of the store are retried
		d = 25*time.Second + s.within(20*time.Second)
	}
	s.add(at+d, "store", "is well", func(w *world) { w.store.ail(none, 0) })
}

func (s *schedule) attack(at time.Duration) {
	a, d, seed := attacks[s.random.IntN(len(attacks))], s.pause(), s.random.Uint64()
	s.add(at, "attack", a.name, func(w *world) { w.enemy.attack(a.name, a.do, d, seed) })
}

// intrude starts another process as a data node: with another secret, or with the right one while the data node is running.
func (s *schedule) intrude(at time.Duration) {
	i, address, secret := s.random.IntN(s.nodes), rivalAddr, secret
	if s.random.IntN(3) > 0 {
		address, secret = intruderAddr, []string{"a guess", ""}[s.random.IntN(2)]
	}
	var p *process
	s.add(at, "intruder", fmt.Sprintf("as data node %d, secret %q", i, secret), func(w *world) {
		if !w.nodes[i].down && w.net.free(address) {
			p = w.nodeAt(i, address, secret)
			if address == rivalAddr {
				w.rivals[i] = p
				w.displace()
			}
		}
	})
	s.add(at+s.within(3*time.Second), "intruder", "goes", func(w *world) {
		if p != nil {
			w.stop(p)
		}
	})
}

// tamper makes the store serve forged data files and ends a data node. When that restarts, it must not serve rows of the forged
// files, so the cache fails.
func (s *schedule) tamper(at time.Duration) {
	i := s.random.IntN(s.nodes)
	s.add(at, "tamper", fmt.Sprintf("with data files, kill process %d", i), func(w *world) {
		if s.nodes == 1 || w.spared || !w.allLoaded() {
			return
		}
		w.store.forge()
		w.killNumber(i, false)
		w.spared, w.tampered = true, true
	})
	s.add(at+s.within(2*time.Second), "start", fmt.Sprintf("process %d", i), func(w *world) { w.startNumber(i) })
}
