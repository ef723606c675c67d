// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package work_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeflow/datacache/cacheserver/work"
)

// begin makes a Begin that reserves nothing.
func begin(step func(i int) error) func(bool) (func(int) error, error) {
	return func(bool) (func(int) error, error) { return step, nil }
}

// run runs tasks that each take as many seconds a step as it costs, started a moment apart, and returns when each ended.
func run(t *testing.T, width int, tasks ...work.Task) []time.Duration {
	t.Helper()
	pool, started, ends := work.New(width), time.Now(), make([]time.Duration, len(tasks))
	var group sync.WaitGroup
	for i, task := range tasks {
		task.Begin = begin(func(int) error { time.Sleep(time.Duration(task.Cost * float64(time.Second))); return nil }) //nolint:forbidigo // the clock of synctest
		time.Sleep(time.Microsecond)                                                                                    //nolint:forbidigo // the clock of synctest
		group.Go(func() {
			if err := pool.Run(t.Context(), task); err != nil {
				t.Error(err)
			}
			ends[i] = time.Since(started).Round(time.Second)
		})
	}
	group.Wait()
	return ends
}

func TestSmallTasksDoNotWaitForLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := run(t, 2,
			work.Task{Owner: "large", Steps: 1000, Cost: 10}, work.Task{Owner: "large", Steps: 1000, Cost: 10},
			work.Task{Owner: "other", Steps: 1000, Cost: 10}, work.Task{Owner: "small", Steps: 20, Cost: 1})
		if ends[3] > 40*time.Second {
			t.Errorf("20 s of steps ended after %s, at most one step of 10 s and its own are due", ends[3])
		}
		if all := 15_010 * time.Second; max(ends[0], ends[1], ends[2]) > all+10*time.Second {
			t.Errorf("the others ended after %v, two at a time take %s", ends, all)
		}
	})
}

func TestOwnersShareEqually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tasks := make([]work.Task, 9)
		for i := range tasks {
			tasks[i] = work.Task{Owner: "many", Steps: 1000, Cost: 1}
		}
		tasks[8].Owner = "one"
		ends := run(t, 1, tasks...)
		if one := ends[8].Seconds(); one < 1900 || one > 2100 {
			t.Errorf("1000 s of steps beside another owner's ended after %.0f s, want 2000", one)
		}
	})
}

func TestEveryStepRunsOnce(t *testing.T) {
	pool := work.New(64)
	var group sync.WaitGroup
	for steps := range 20 {
		group.Go(func() {
			runs := make([]atomic.Int64, steps)
			err := pool.Run(t.Context(), work.Task{Steps: steps, Cost: 1, Begin: begin(func(i int) error { runs[i].Add(1); return nil })})
			for i := range runs {
				if n := runs[i].Load(); n != 1 || err != nil {
					t.Errorf("step %d of %d ran %d times, %v", i, steps, n, err)
				}
			}
		})
	}
	group.Wait()
}

func TestTasksAreCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := work.New(2)
		ctx, cancel := context.WithTimeout(t.Context(), 95*time.Second)
		defer cancel()
		var running, started atomic.Int64
		err := pool.Run(ctx, work.Task{Steps: 1000, Cost: 1, Begin: begin(func(int) error {
			running.Add(1)
			started.Add(1)
			time.Sleep(10 * time.Second) //nolint:forbidigo // the clock of synctest
			running.Add(-1)
			return nil
		})})
		if !errors.Is(err, context.DeadlineExceeded) || running.Load() != 0 || started.Load() != 20 {
			t.Errorf("%v, %d steps run, %d have started: want the context's error, none and 20", err, running.Load(), started.Load())
		}
	})
}

func TestStepsWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, full := work.New(8), errors.New("no room")
		var running, most atomic.Int64
		task := work.Task{
			Steps: 100, Cost: 1,
			Begin: func(bool) (func(int) error, error) {
				if running.Load() == 3 {
					return nil, full
				}
				most.Store(max(most.Load(), running.Add(1)))
				return func(int) error { time.Sleep(time.Second); running.Add(-1); return nil }, nil //nolint:forbidigo // the clock of synctest
			},
		}
		if err := pool.Run(t.Context(), task); err != nil || most.Load() != 3 {
			t.Errorf("%v with %d steps at a time, want 3", err, most.Load())
		}
		task.Begin = func(bool) (func(int) error, error) { return nil, full }
		if err := pool.Run(t.Context(), task); !errors.Is(err, full) {
			t.Errorf("%v, want the error of Begin where no other step runs", err)
		}
	})
}

func TestFailedStepEndsTask(t *testing.T) {
	pool, wrong := work.New(4), errors.New("wrong")
	err := pool.Run(t.Context(), work.Task{Steps: 1000, Cost: 1, Begin: begin(func(i int) error {
		if i == 5 {
			return wrong
		}
		return nil
	})})
	if !errors.Is(err, wrong) {
		t.Errorf("%v, want the step's error", err)
	}
	if err := pool.Run(t.Context(), work.Task{}); err != nil {
		t.Errorf("a task without steps: %v", err)
	}
}
