// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errAway = errors.New("away")

func passes(err error) bool { return errors.Is(err, errAway) }

func TestDoWaitsLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		var notes []string
		begin := time.Now()
		err := Do(t.Context(), passes, func(s string) { notes = append(notes, s) }, func() error {
			at = append(at, time.Since(begin))
			if len(at) < 9 {
				return errAway
			}
			return nil
		})
		if err != nil || len(at) != 9 || len(notes) != 9 || notes[8] != "" || !strings.Contains(notes[0], "away; trying again in ") || !strings.Contains(notes[7], "(attempt 9)") {
			t.Fatalf("%d attempts, notes %q, ended with %v", len(at), notes, err)
		}
		for i := 1; i < len(at); i++ {
			most := min(time.Second<<(i-1), 30*time.Second)
			if wait := at[i] - at[i-1]; wait > most || wait < most*3/4 {
				t.Errorf("waited %s before attempt %d, want %s to %s", wait, i+1, most*3/4, most)
			}
		}
	})
}

func TestDoEnds(t *testing.T) {
	final := errors.New("corrupt")
	none := func(s string) { t.Errorf("noted %q", s) }
	if err := Do(t.Context(), passes, none, func() error { return final }); !errors.Is(err, final) {
		t.Errorf("ended with %v", err)
	}
	if err := Do(t.Context(), passes, none, func() error { return nil }); err != nil {
		t.Errorf("ended with %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := Do(ctx, passes, func(string) {}, func() error { return errAway }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
	})
}
