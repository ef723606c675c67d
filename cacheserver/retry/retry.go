// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package retry repeats operations that failed with a temporary error, with exponential backoff.
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

// Do calls try until it succeeds, fails with an error for which passes returns false, or ctx ends. Before each pause it calls note
// with one line of text for the user; once try has succeeded after a failure, it calls note with the empty string.
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

// pause is the delay after the given number of attempts: it doubles from one second to thirty, and is reduced by up to a quarter
// depending on random, which is in [0, 1).
func pause(attempts int, random float64) time.Duration {
	d := mostPause
	if attempts < 6 {
		d = min(d, firstPause<<(attempts-1))
	}
	return d - time.Duration(random*float64(d)/4)
}
