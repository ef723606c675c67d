// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	p := pace{least: 1000, period: time.Second, since: begin}
	steps := []struct {
		at   time.Duration
		n    int
		slow bool
	}{
		{100 * time.Millisecond, 10, false}, // the period is not over
		{1100 * time.Millisecond, 990, false},
		{2 * time.Second, 10, false}, // a period starts at the call that saw the previous one end
		{2200 * time.Millisecond, 100, true},
	}
	for _, s := range steps {
		if err := p.count(s.n, begin.Add(s.at)); errors.Is(err, errStalled) != s.slow || s.slow && !strings.Contains(err.Error(), "the answer is slow: 0.1 KB/s for 1.1s") {
			t.Errorf("%d bytes at %s: %v, slow: %t", s.n, s.at, err, s.slow)
		}
	}
}

// TestTroubleNamesTheReadThatIsTriedAgain checks that Trouble names a read that is being retried, and forgets it when the read is
// over.
func TestTroubleNamesTheReadThatIsTriedAgain(t *testing.T) {
	s := New(Config{})
	s.sleep = func(context.Context, time.Duration) error { return nil }
	tries := 0
	err := s.retry(t.Context(), "s3://b/k", func(context.Context) error {
		tries++
		switch trouble := s.Trouble(); {
		case tries == 1 && trouble != "":
			t.Errorf("trouble before any: %q", trouble)
		case tries == 2 && (!strings.Contains(trouble, "s3://b/k: 503") || !strings.Contains(trouble, "(attempt 2)")):
			t.Errorf("trouble %q", trouble)
		}
		if tries == 1 {
			return &refusal{status: 503}
		}
		return nil
	})
	if err != nil || tries != 2 || s.Trouble() != "" {
		t.Errorf("%d tries ended with %v, trouble %q", tries, err, s.Trouble())
	}
	err = s.retry(t.Context(), "s3://b/k", func(context.Context) error { return &refusal{status: 503} })
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	err = s.retry(t.Context(), "s3://b/k", func(context.Context) error { return &refusal{status: 404} })
	if err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want an error that does not pass", err)
	}
}
