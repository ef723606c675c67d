// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	refusal := &upstream.Refused{Answer: upstream.Document{Status: http.StatusForbidden}}
	busy := &upstream.Refused{Answer: upstream.Document{Status: http.StatusTooManyRequests}}
	down := errors.New("connection refused")
	const stale = time.Hour
	for _, step := range []struct {
		name   string
		answer error // upstream's, once it has consented at 0 s
		second int
		stale  time.Duration
		asked  bool
		want   error
	}{
		{"remembered", refusal, 59, stale, false, nil},
		{"refused", refusal, 60, stale, true, refusal},
		{"down", down, 60, stale, true, nil},
		{"busy", busy, 60, stale, true, nil},
		{"down for long", down, 3660, stale, true, down},
		{"down, and nothing may be stale", down, 60, 0, true, down},
		{"consents again", nil, 60, stale, true, nil},
	} {
		staleCount := 0
		r := New(func() { staleCount++ })
		start := time.Now()
		r.now = func() time.Time { return start }
		if err := r.Check(t.Context(), "token", "repo", step.stale, func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		r.now = func() time.Time { return start.Add(time.Duration(step.second) * time.Second) }
		asked := false
		err := r.Check(t.Context(), "token", "repo", step.stale, func(context.Context) error {
			asked = true
			return step.answer
		})
		if !errors.Is(err, step.want) || asked != step.asked {
			t.Errorf("%s: %v, asked %v; want %v, %v", step.name, err, asked, step.want, step.asked)
		}
		if wantStale := step.asked && step.answer != nil && step.want == nil; (staleCount == 1) != wantStale {
			t.Errorf("%s: counted %d times as stale", step.name, staleCount)
		}
	}
}

// TestCheckForgetsAfterRefusal checks that a refusal ends a consent, also for the time in which upstream fails.
func TestCheckForgetsAfterRefusal(t *testing.T) {
	t.Parallel()
	r := New(func() {})
	start := time.Now()
	answers := []error{nil, &upstream.Refused{Answer: upstream.Document{Status: http.StatusUnauthorized}}, errors.New("down")}
	for i, answer := range answers {
		r.now = func() time.Time { return start.Add(time.Duration(i) * MaxAge) }
		if err := r.Check(t.Context(), "token", "repo", 24*time.Hour, func(context.Context) error { return answer }); !errors.Is(err, answer) {
			t.Errorf("answer %d: %v, want %v", i, err, answer)
		}
	}
}

func TestConsentsAreOfOneCredentialAndScope(t *testing.T) {
	t.Parallel()
	r := New(func() {})
	refusal := errors.New("asked")
	if err := r.Check(t.Context(), "a", "b/c", 0, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for _, other := range [][2]string{{"a", "b/d"}, {"", "b/c"}, {"a", "c"}, {"ab", "/c"}, {"ab/c", ""}} {
		if err := r.Check(t.Context(), other[0], other[1], 0, func(context.Context) error { return refusal }); !errors.Is(err, refusal) {
			t.Errorf("%q: %v, want a question", other, err)
		}
	}
}

func TestConsentsAreBounded(t *testing.T) {
	t.Parallel()
	r := New(func() {})
	for i := range maxConsents + 100 {
		if err := r.Check(t.Context(), "", fmt.Sprint(i), 0, func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.consents.Len(); n > maxConsents {
		t.Errorf("%d consents, want at most %d", n, maxConsents)
	}
}
