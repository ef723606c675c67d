// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

// idle is for streams that do not wait for the network.
func idle() bool { return false }

// reader is a job in a simulation: each of its streams sends messages of a length as fast as its turns allow, and holds each turn for
// a time.
type reader struct {
	job     string // and, after an @, the address of its streams if it is not the job's own
	streams int
	message int64
	hold    time.Duration
	begin   time.Duration // after the start of the simulation
}

// simulate runs the jobs for a time of the test's bubble and returns the bytes that each has sent.
func simulate(t *testing.T, q *Queue, length time.Duration, readers ...reader) map[string]int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	sent := map[string]int64{}
	for _, r := range readers {
		job, address, _ := strings.Cut(r.job, "@")
		for range r.streams {
			all.Go(func() {
				time.Sleep(r.begin) //nolint:forbidigo // the clock of synctest
				s, err := q.Join(job, cmp.Or(address, job), idle)
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Leave()
				for {
					if _, err := s.Take(ctx); err != nil || ctx.Err() != nil {
						return
					}
					time.Sleep(r.hold) //nolint:forbidigo // the clock of synctest
					s.Sent(r.message)
					mu.Lock()
					sent[job] += r.message
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	return sent
}

func checkShare(t *testing.T, sent map[string]int64, job string, want float64) {
	t.Helper()
	var total int64
	for _, n := range sent {
		total += n
	}
	if got := float64(sent[job]) / float64(total); math.Abs(got-want) > 0.02 {
		t.Errorf("job %s has %.3f of the bytes, want %.3f: %v", job, got, want, sent)
	}
}

func TestShares(t *testing.T) {
	tests := []struct {
		name    string
		weights map[string]int
		readers []reader
		want    map[string]float64
	}{
		{"many streams and few", nil, []reader{{"many", 32, mib, time.Millisecond, 0}, {"few", 2, mib, time.Millisecond, 0}}, map[string]float64{"few": 0.5}},
		{"one that comes late", nil, []reader{{"a", 8, mib, time.Millisecond, 0}, {"b", 8, mib, time.Millisecond, 0}, {"late", 2, mib, time.Millisecond, 5 * time.Second}},
			map[string]float64{"late": 0.2}},
		{"weights", map[string]int{"heavy": 3}, []reader{{"heavy", 8, mib, time.Millisecond, 0}, {"light", 8, mib, time.Millisecond, 0}}, map[string]float64{"heavy": 0.75}},
		{"short messages", nil, []reader{{"long", 8, mib, 2 * time.Millisecond, 0}, {"short", 8, mib / 8, time.Millisecond / 4, 0}}, map[string]float64{"short": 0.5}},
		{"four jobs", nil, []reader{{"a", 2, mib, time.Millisecond, 0}, {"b", 2, mib, time.Millisecond, 0}, {"c", 4, mib, time.Millisecond, 0}, {"d", 64, mib, time.Millisecond, 0}},
			map[string]float64{"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25}},
		{"a job of two addresses", nil, []reader{{"a@x", 4, mib, time.Millisecond, 0}, {"a@y", 4, mib, time.Millisecond, 0}, {"b", 4, mib, time.Millisecond, 0}},
			map[string]float64{"b": 0.5}},
		{"two jobs of one address", nil, []reader{{"a@x", 4, mib, time.Millisecond, 0}, {"b@x", 4, mib, time.Millisecond, 0}, {"c", 4, mib, time.Millisecond, 0}},
			map[string]float64{"a": 0.25, "b": 0.25, "c": 0.5}},
	}
	forged := []reader{{"honest", 2, mib, time.Millisecond, 0}}
	for i := range 31 {
		forged = append(forged, reader{fmt.Sprintf("forged %d@one", i), 1 + i%2, mib, time.Millisecond, 0})
	}
	tests = append(tests, tests[0])
	tests[len(tests)-1].name, tests[len(tests)-1].readers, tests[len(tests)-1].want = "names of one address", forged, map[string]float64{"honest": 0.5}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := New(4)
				q.Configure(Settings{Weights: tt.weights})
				sent := simulate(t, q, 10*time.Second, tt.readers...)
				for job, want := range tt.want {
					checkShare(t, sent, job, want)
				}
			})
		})
	}
}

// TestNamesThatChange has a client that sends each message as another job.
func TestNamesThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(4)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		var changed int64
		var mu sync.Mutex
		for stream := range 8 {
			all.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					s, err := q.Join(fmt.Sprintf("%d of %d", i, stream), "one", idle)
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := s.Take(ctx); err == nil {
						time.Sleep(time.Millisecond) //nolint:forbidigo // the clock of synctest
						s.Sent(mib)
						mu.Lock()
						changed += mib
						mu.Unlock()
					}
					s.Leave()
				}
			})
		}
		sent := simulate(t, q, 10*time.Second, reader{"honest", 2, mib, time.Millisecond, 0})
		all.Wait()
		if share := float64(sent["honest"]) / float64(sent["honest"]+changed); share < 0.45 {
			t.Errorf("the honest job has %.3f of the bytes, want half", share)
		}
		if len(q.jobs) > 20 || len(q.sources) > 2 {
			t.Errorf("%d jobs and %d addresses are kept", len(q.jobs), len(q.sources))
		}
	})
}

// TestSlowReadersHoldNobody has a job whose clients take 100 ms for each message beside one that is fast.
func TestSlowReadersHoldNobody(t *testing.T) {
	fast := reader{"fast", 4, mib, time.Millisecond, 0}
	alone := func(t *testing.T) int64 { return simulate(t, New(4), 10*time.Second, fast)["fast"] }
	synctest.Test(t, func(t *testing.T) {
		sent := simulate(t, New(4), 10*time.Second, fast, reader{"slow", 32, mib, 100 * time.Millisecond, 0})
		if least := alone(t) * 8 / 10; sent["fast"] < least {
			t.Errorf("the fast job has sent %d MiB, want at least %d", sent["fast"]/mib, least/mib)
		}
		if least := int64(32 * 10 * 8 * mib); sent["slow"] < least {
			t.Errorf("the slow job has sent %d MiB, want at least %d: its clients take 320 a second", sent["slow"]/mib, least/mib)
		}
	})
}

// TestReadersThatStop has a job whose streams never end their turns: a stream of another job waits for usualPatience at most, or for
// mostPatience if the others wait for the network.
func TestReadersThatStop(t *testing.T) {
	for name, tt := range map[string]struct {
		sending func() bool
		want    time.Duration
	}{"clients": {idle, usualPatience}, "network": {func() bool { return true }, mostPatience}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := New(2)
				var streams []*Stream
				for i := range 5 {
					job := "stopped"
					if i == 4 {
						job = "next"
					}
					s, err := q.Join(job, job, tt.sending)
					if err != nil {
						t.Fatal(err)
					}
					streams = append(streams, s)
				}
				for i, s := range streams {
					waited, err := s.Take(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if i == 4 && (waited < tt.want || waited > tt.want+pollInterval) {
						t.Errorf("waited %s, want %s", waited, tt.want)
					}
				}
				for _, s := range streams {
					s.Leave()
				}
			})
		})
	}
}

// TestPatience checks that a stream may wait less and less for its client while its turns are long, unless the network made them long.
func TestPatience(t *testing.T) {
	for name, tt := range map[string]struct {
		turn     time.Duration
		draining bool
		want     time.Duration
	}{"quick": {quickTurn - 1, false, usualPatience}, "slow client": {quickTurn, false, leastPatience}, "slow network": {quickTurn, true, usualPatience}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(1).Join("job", "job", idle)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Leave()
				for range 20 {
					if _, err := s.Take(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(tt.turn) //nolint:forbidigo // the clock of synctest
					if tt.draining {
						s.Draining()
					}
				}
				s.Release()
				if s.patience != tt.want {
					t.Errorf("%s, want %s", s.patience, tt.want)
				}
			})
		})
	}
}

// TestAJobAloneTakesAllTurns checks that streams never wait for those of their own job while no other job has streams.
func TestAJobAloneTakesAllTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(1)
		var streams []*Stream
		for range 9 {
			s, err := q.Join("alone", "alone", idle)
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
			if waited, err := s.Take(t.Context()); err != nil || waited != 0 {
				t.Errorf("waited %s, error %v", waited, err)
			}
		}
		for _, s := range streams {
			s.Leave()
		}
	})
}

func TestTakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(1) // two for each job
		var holders []*Stream
		for range 4 {
			s, err := q.Join("a", "a", idle)
			if err != nil {
				t.Fatal(err)
			}
			holders = append(holders, s)
		}
		waiter, err := q.Join("b", "b", idle)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range holders {
			if _, err := s.Take(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := waiter.Take(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		for _, s := range append(holders, waiter) {
			s.Leave()
		}
		if len(q.jobs) != 0 || len(q.waiting) != 0 || len(q.holding) != 0 {
			t.Errorf("the queue is not empty: %+v", q)
		}
	})
}

func TestLimits(t *testing.T) {
	q := New(1)
	q.Configure(Settings{MaxJobs: 2, MaxStreamsPerJob: 2})
	join := func(job string) error {
		_, err := q.Join(job, job, idle)
		return err
	}
	for _, job := range []string{"a", "a", "b"} {
		if err := join(job); err != nil {
			t.Fatal(err)
		}
	}
	for job, limit := range map[string]string{"a": "maxStreamsPerJob", "c": "maxJobs"} {
		err := join(job)
		var full *LimitError
		if !errors.As(err, &full) || full.Limit != limit || full.Most != 2 || full.Job != job {
			t.Errorf("job %s: error %v, want the limit %s", job, err, limit)
			continue
		}
		if text := err.Error(); !strings.Contains(text, limit) || !strings.Contains(text, job) {
			t.Errorf("%q names neither %q nor %q", text, limit, job)
		}
	}
	q.Configure(Settings{})
	if err := join("c"); err != nil {
		t.Error(err)
	}
}

// TestJobsAreForgotten checks that the queue doesn't grow with the number of jobs that have ended.
func TestJobsAreForgotten(t *testing.T) {
	q := New(1)
	for i := range 1000 {
		s, err := q.Join(string(rune(i)), string(rune(i)), idle)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Sent(mib)
		s.Leave()
	}
	if len(q.jobs) > 1 || len(q.sources) > 1 {
		t.Errorf("%d jobs and %d addresses are kept", len(q.jobs), len(q.sources))
	}
}

func TestParse(t *testing.T) {
	s, err := Parse([]byte(`{"weights": {"a": 3}, "maxJobs": 2, "maxStreamsPerJob": 64}`))
	if err != nil || s.Weights["a"] != 3 || s.MaxJobs != 2 || s.MaxStreamsPerJob != 64 {
		t.Errorf("%+v, error %v", s, err)
	}
	for text, says := range map[string]string{
		"":                         "JSON",
		"[]":                       "JSON",
		"null":                     "not null",
		`{} {}`:                    "nothing behind it",
		`{"weight": {}}`:           `"weight"`,
		`{"weights": {"a": 0}}`:    `"a": 0`,
		`{"weights": {"a": 1001}}`: "1001",
		`{"maxJobs": -1}`:          "maxJobs: -1",
		`{"maxStreamsPerJob": -1}`: "maxStreamsPerJob: -1",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v does not name %s", text, err, says)
		}
	}
}

func TestWeightsOfANamespace(t *testing.T) {
	s, err := Parse([]byte(`{"weights": {"train": 3, "team-b/train": 5, "team-a/eval": 7, "eval": 2}, "namespace": "team-a"}`))
	if err != nil {
		t.Fatal(err)
	}
	for job, want := range map[string]float64{
		"train": 3, "team-a/train": 3, "team-b/train": 5, "team-c/train": 1, "team-a/eval": 7, "team-a/other": 1, "/train": 1,
	} {
		if got := s.weight(job); got != want {
			t.Errorf("weight of %s = %v, want %v", job, got, want)
		}
	}
}

// BenchmarkTake measures what a turn costs if nobody else wants one.
func BenchmarkTake(b *testing.B) {
	q := New(4)
	s, err := q.Join("a", "a", idle)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Take(b.Context()); err != nil {
			b.Fatal(err)
		}
		s.Sent(mib)
	}
	s.Leave()
}
