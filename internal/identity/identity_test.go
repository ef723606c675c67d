// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

func TestFromHeader(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"Bearer abc": "abc", "bearer abc": "abc", "BEARER  abc\n": "abc", "Bearer a b": "a b",
		"": "", "Bearer": "", "Bearer ": "", "Basic abc": "", "abc": "",
	} {
		if got, ok := FromHeader(header); got != want && ok || ok != (want != "") {
			t.Errorf("%q = %q, %v, want %q", header, got, ok, want)
		}
	}
}

func TestOfUser(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]string{
		"system:serviceaccount:team-a:default": "team-a",
		"system:serviceaccount:":               "",
		"system:node:worker-1":                 "",
		"alice":                                "",
		"xsystem:serviceaccount:team-a:x":      "",
	} {
		if got := OfUser(user).Namespace; got != want {
			t.Errorf("namespace of %q = %q, want %q", user, got, want)
		}
	}
}

func TestParseTokens(t *testing.T) {
	t.Parallel()
	tokens, err := ParseTokens([]byte("# ours\n\n  secret-1 team-a\nsecret-2\tteam-b"))
	if err != nil {
		t.Fatal(err)
	}
	static := Static(func() Tokens { return tokens })
	for token, want := range map[string]string{"secret-1": "team-a", "secret-2": "team-b"} {
		if got, err := static.Review(t.Context(), token); err != nil || got.Namespace != want {
			t.Errorf("%s = %+v, %v, want %s", token, got, err, want)
		}
	}
	for _, token := range []string{"", "secret", "secret-1 team-a", "#"} {
		if got, err := static.Review(t.Context(), token); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q = %+v, %v, want %v", token, got, err, ErrUnknown)
		}
	}
	for text, want := range map[string]string{
		"":             "no tokens",
		"# nothing":    "no tokens",
		"a b\nsecret":  "line 2: 1 words",
		"a b c":        "line 1: 3 words",
		"a b\n\na c\n": "line 3: the token is there twice",
	} {
		if _, err := ParseTokens([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q and no token in it", text, err, want)
		}
	}
}

// oracle is a Reviewer that returns a fixed answer and counts its calls.
type oracle struct {
	mu    sync.Mutex
	asked int
	err   error
	wait  chan struct{} // if set, reviews wait until it is closed
}

func (o *oracle) Review(ctx context.Context, token string) (Identity, error) {
	o.mu.Lock()
	o.asked++
	err, wait := o.err, o.wait
	o.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return Identity{}, ctx.Err()
		}
	}
	return Identity{Namespace: "of-" + token}, err
}

func (o *oracle) times() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked
}

func TestCacheBelievesForAMinute(t *testing.T) {
	t.Parallel()
	down := errors.New("the API server is down")
	tests := map[string]struct {
		err  error
		asks []int // calls after reviews at 0 s, 9 s, 11 s, 59 s, 60 s
	}{
		"a good token": {nil, []int{1, 1, 1, 1, 2}},
		"nobody's":     {fmt.Errorf("expired: %w", ErrUnknown), []int{1, 1, 2, 3, 3}},
		"nobody knows": {down, []int{1, 2, 3, 4, 5}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &oracle{err: test.err}
			c := NewCache(o)
			start := time.Now()
			for i, second := range []int{0, 9, 11, 59, 60} {
				c.now = func() time.Time { return start.Add(time.Duration(second) * time.Second) }
				identity, err := c.Review(t.Context(), "token")
				if test.err == nil && (err != nil || identity.Namespace != "of-token") {
					t.Errorf("at %d s: %+v, %v", second, identity, err)
				}
				if test.err != nil && !errors.Is(err, test.err) && !errors.Is(err, ErrUnknown) {
					t.Errorf("at %d s: error %v, want %v", second, err, test.err)
				}
				if o.times() != test.asks[i] {
					t.Errorf("at %d s: asked %d times, want %d", second, o.times(), test.asks[i])
				}
			}
		})
	}
}

func TestCacheAsksOnceForMany(t *testing.T) {
	t.Parallel()
	o := &oracle{wait: make(chan struct{})}
	c := NewCache(o)
	leaving, leave := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := c.Review(leaving, "token"); !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v, want %v", err, context.Canceled)
		}
	})
	deadline.Until(t, "somebody to ask", func() bool { return o.times() > 0 })
	for range 100 {
		group.Go(func() {
			if identity, err := c.Review(t.Context(), "token"); err != nil || identity.Namespace != "of-token" {
				t.Errorf("%+v, %v", identity, err)
			}
		})
	}
	leave()
	close(o.wait)
	group.Wait()
	if o.times() != 1 {
		t.Errorf("asked %d times, want once", o.times())
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := NewCache(&oracle{err: ErrUnknown})
	for i := range maxAnswers + 100 {
		if _, err := c.Review(t.Context(), fmt.Sprint(i)); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
	}
	if n := c.answers.Len(); n > maxAnswers {
		t.Errorf("%d answers remembered, want at most %d", n, maxAnswers)
	}
}
