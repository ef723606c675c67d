// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package work runs tasks in steps on a bounded number of goroutines, which owners of tasks share fairly by the cost of the steps.
//
// The next step is granted by start-time fair queueing, as in package fair: each task has a virtual time, which a step advances by its
// cost times the number of its owner's tasks; the task with the earliest one is next. So a small task never waits for the end of a large
// one, and an owner with many tasks gets no more than another with one.
package work

import (
	"context"
	"slices"
	"sync"
)

// Pool runs tasks. Make it with New; it is safe for concurrent use.
type Pool struct {
	width int

	mu      sync.Mutex
	running int            // steps
	virtual float64        // the virtual time of the task that got the last step
	tasks   []*task        // tasks that still have steps to start
	owners  map[string]int // their number by owner
}

// Task is work in steps. Steps run concurrently and in any order.
type Task struct {
	Owner string
	Steps int
	Cost  float64 // of a step
	// Begin reserves what a step needs and returns the step, which releases it. It must not block. If it fails while other steps run, it is
	// called again when one of them has ended; if none runs, which alone says, its error ends the task.
	Begin func(alone bool) (step func(i int) error, err error)
}

// task is a task in a pool, which protects all but the first two fields.
type task struct {
	Task
	done chan struct{} // closed when no step runs and none will start

	virtual float64
	next    int  // the step to start next
	running int  // steps
	waits   bool // Enter failed, and no step of the pool has ended since
	err     error
}

// New returns a pool that runs at most width steps at a time.
func New(width int) *Pool { return &Pool{width: width, owners: map[string]int{}} }

// Run runs all steps of a task, until one fails or ctx ends. No step runs any more when it returns.
func (p *Pool) Run(ctx context.Context, of Task) error {
	t := &task{Task: of, done: make(chan struct{})}
	p.open(t)
	stop := context.AfterFunc(ctx, func() { p.cancel(t, ctx.Err()) })
	defer stop()
	<-t.done
	return t.err
}

func (p *Pool) open(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.virtual = p.virtual
	p.tasks = append(p.tasks, t)
	p.owners[t.Owner]++
	p.settle(t)
	p.dispatch()
}

func (p *Pool) cancel(t *task, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail(t, err)
}

// fail keeps a task from starting further steps. It does nothing to a task whose steps have all started. mu is held.
func (p *Pool) fail(t *task, err error) {
	if t.next < t.Steps {
		t.err, t.next = err, t.Steps
		p.settle(t)
	}
}

// settle takes a task that starts no further step out of the queue, and ends it if no step runs. mu is held.
func (p *Pool) settle(t *task) {
	if t.next < t.Steps {
		return
	}
	if i := slices.Index(p.tasks, t); i >= 0 {
		p.tasks = slices.Delete(p.tasks, i, i+1)
		if p.owners[t.Owner]--; p.owners[t.Owner] == 0 {
			delete(p.owners, t.Owner)
		}
	}
	if t.running == 0 {
		close(t.done)
	}
}

// dispatch starts steps while there is room for them. mu is held.
func (p *Pool) dispatch() {
	for p.running < p.width {
		t := p.first()
		if t == nil {
			return
		}
		alone := p.running == 0
		step, err := t.Begin(alone)
		switch {
		case err == nil:
			p.start(t, step)
		case alone:
			p.fail(t, err)
		default:
			t.waits = true
		}
	}
}

// first is the task that gets the next step, nil if there is none. mu is held.
func (p *Pool) first() (first *task) {
	for _, t := range p.tasks {
		if !t.waits && (first == nil || t.virtual < first.virtual) {
			first = t
		}
	}
	return first
}

// start starts a task's next step. mu is held.
func (p *Pool) start(t *task, step func(i int) error) {
	number := t.next
	p.virtual = max(p.virtual, t.virtual)
	t.virtual += t.Cost * float64(p.owners[t.Owner])
	t.next++
	t.running++
	p.running++
	p.settle(t)
	go func() {
		err := step(number)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running--
		t.running--
		if err != nil && t.err == nil {
			t.err, t.next = err, t.Steps
		}
		p.settle(t)
		for _, other := range p.tasks {
			other.waits = false
		}
		p.dispatch()
	}()
}
