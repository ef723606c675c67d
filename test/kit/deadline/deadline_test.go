// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deadline

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimitGrowsWithTheLoad(t *testing.T) { //nolint:paralleltest // it measures how busy the processors are
	before := Limit()
	if before < idle || before > mostLoad*idle {
		t.Fatalf("a limit of %s", before)
	}
	heaviest.Lock()
	heaviest.measured = time.Time{} // forget it
	heaviest.Unlock()
	busy, done := context.WithCancel(t.Context())
	defer done()
	for range 32 * runtime.GOMAXPROCS(0) {
		go func() {
			for busy.Err() == nil { // it keeps a processor busy
			}
		}()
	}
	if now := Limit(); now < 2*idle {
		t.Errorf("a limit of %s beside goroutines that compute, of %s before", now, before)
	}
}

func TestContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, began := Context(t), time.Now()
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) || time.Since(began) < idle {
			t.Errorf("%v after %s", context.Cause(ctx), time.Since(began))
		}
	})
}

func TestEventually(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, looks := time.Now(), 0
		Eventually(t, func() error {
			if looks++; looks < 4 {
				return errors.New("not yet")
			}
			return nil
		})
		if time.Since(began) != 3*poll {
			t.Errorf("4 looks took %s", time.Since(began))
		}
	})
}

// failing is a testing.TB whose Fatalf ends its goroutine and fails no test.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestWaitsEnd(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(testing.TB){
		"eventually": func(t testing.TB) { Eventually(t, func() error { return errors.New("the door is closed") }) },
		"receive":    func(t testing.TB) { Receive(t, make(chan int), "the door") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, f, ended := time.Now(), &failing{TB: t}, make(chan struct{})
				go func() {
					defer close(ended)
					wait(f)
				}()
				<-ended
				if waited := time.Since(began); waited < idle || !strings.Contains(f.message, "the door") {
					t.Errorf("failed after %s with %q", waited, f.message)
				}
			})
		})
	}
}
