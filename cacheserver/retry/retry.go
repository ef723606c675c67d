// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package retry repeats what failed for a reason that may pass, with pauses that grow.
package retry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
)

// Do calls try until it succeeds, fails with an error that passes does not accept, or ctx ends. Before each pause
// it calls note with one line for people; once try has succeeded after a failure, with the empty string.
func Do(ctx context.Context, passes func(error) bool, note func(trouble string), try func() error) error {
	for attempt := 1; ; attempt++ {
		err := try()
		if err == nil && attempt > 1 {
			note("")
		}
		if err == nil || ctx.Err() != nil || !passes(err) {
			return err
		}
		wait := pause(attempt, rand.Float64())
		note(fmt.Sprintf("%v; trying again in %s (attempt %d)", err, wait.Round(time.Second/10), attempt+1))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pause is how long to wait after so many attempts: it doubles from one second to thirty, less up to a quarter
// that random, in [0, 1), decides.
func pause(attempts int, random float64) time.Duration {
	d := mostPause
	if attempts < 6 {
		d = min(d, firstPause<<(attempts-1))
	}
	return d - time.Duration(random*float64(d)/4)
}
