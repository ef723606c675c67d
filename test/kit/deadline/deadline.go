// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deadline is the time limit of everything that tests wait for. There is one: it is long, it is reached only by a test that fails, and it
// grows with the load of the machine, so that whether a test passes does not depend on how busy the machine is. hack/kit/deadline.py is the same
// for Python.
package deadline

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"
	"time"
)

const (
	// idle is the limit on a machine that does nothing else.
	idle = 3 * time.Minute
	// poll is the time between two looks of Eventually.
	poll = 20 * time.Millisecond
	// mostLoad bounds the load, so that a test that hangs ends before its package's own time limit.
	mostLoad = 6
)

// Limit is how long to wait at most, from now on: three minutes, and longer the busier the machine is. It takes a moment to measure that.
func Limit() time.Duration { return time.Duration(load() * float64(idle)) }

// Wait is one wait, which began when it was made. It is not safe for concurrent use.
type Wait struct {
	idle         time.Duration // the limit on a machine that does nothing else
	began, until time.Time
}

// Start begins a wait.
func Start() *Wait { return StartLong(idle) }

// StartLong begins a wait for long work, such as that of a thousand pods, with its own limit on a machine that does nothing else.
func StartLong(idle time.Duration) *Wait {
	now := time.Now()
	return &Wait{idle: idle, began: now, until: now.Add(idle)}
}

// Over reports whether the time limit has passed since the wait began. The load is measured when the limit of an idle machine has passed, and again
// when the limit for that load has.
func (w *Wait) Over() bool {
	now := time.Now()
	if now.Before(w.until) {
		return false
	}
	before := w.until
	w.until = w.began.Add(time.Duration(load() * float64(w.idle)))
	return !w.until.After(before) || !now.Before(w.until)
}

// Context returns a context that ends with the test, or when the time limit is over.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cancel(nil) })
	wait := Start()
	go func() { // ends with the context
		for !wait.Over() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(wait.until)):
			}
		}
		cancel(context.DeadlineExceeded)
	}()
	return ctx
}

// Eventually calls check every 20 ms until it returns nil; at the time limit it fails the test with the last error, so it must be
// called from the test's own goroutine. It calls check at least once, and never concurrently.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	Start().Eventually(t, check)
}

// Eventually is the package's function for a wait that has begun.
func (w *Wait) Eventually(t testing.TB, check func() error) {
	t.Helper()
	if err := w.Poll(check); err != nil {
		t.Fatalf("after %s still: %v", time.Since(w.began).Round(time.Second), err)
	}
}

// Poll is Eventually outside of a test's own goroutine: at the time limit it returns the last error.
func (w *Wait) Poll(check func() error) error {
	for ; ; time.Sleep(poll) {
		if err := check(); err == nil || w.Over() {
			return err
		}
	}
}

// Bound ends the reads and writes of a connection at the time limit, or with the test.
func Bound(t testing.TB, conn interface{ SetDeadline(at time.Time) error }) {
	t.Helper()
	context.AfterFunc(Context(t), func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}

// Until is Eventually for a condition without an error. At the time limit it fails the test with what it waited for.
func Until(t testing.TB, what string, done func() bool) {
	t.Helper()
	Eventually(t, func() error {
		if !done() {
			return fmt.Errorf("no end of the wait for %s", what)
		}
		return nil
	})
}

// Receive returns the next value of a channel, the zero value if it is closed. At the time limit it fails the test with what it waited for.
func Receive[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	for wait := Start(); ; {
		select {
		case value := <-from:
			return value
		case <-time.After(poll):
		}
		if wait.Over() {
			t.Fatalf("waited %s for %s", time.Since(wait.began).Round(time.Second), what)
		}
	}
}

// heaviest is the greatest load that was measured. It is kept, since the machine may have been busy during a wait and be idle when the wait ends.
var heaviest = struct {
	sync.Mutex
	load     float64
	measured time.Time
}{load: 1}

// load is how many times as long work takes as on an idle machine. It times many equal pieces of work, and compares their mean with the shortest one,
// which nothing interrupted.
func load() float64 {
	heaviest.Lock() // many waits may end at once: one of them measures
	defer heaviest.Unlock()
	if since := time.Since(heaviest.measured); since >= 0 && since < time.Second {
		return heaviest.load
	}
	const pieces = 400 // of about 0.2 ms, so that together they take as long as a time slice of the processor, or longer
	shortest := time.Duration(1<<63 - 1)
	began := time.Now()
	for range pieces {
		before := time.Now()
		sum := sha256.Sum256(nil)
		for range 1000 {
			sum = sha256.Sum256(sum[:])
		}
		shortest = min(shortest, time.Since(before))
	}
	if shortest <= 0 { // the fake clock of package synctest stands still meanwhile
		return heaviest.load
	}
	now := float64(time.Since(began)) / float64(pieces*shortest)
	heaviest.measured = time.Now()
	heaviest.load = min(max(heaviest.load, now), mostLoad)
	return heaviest.load
}
