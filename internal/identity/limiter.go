// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// ErrTooMany says that too many invalid tokens came from the request's source; the token was not reviewed.
var ErrTooMany = errors.New("too many invalid tokens from this address")

const (
	// rejectedBurst is how many invalid tokens of one source are reviewed in a burst, and rejectedRate how many per second after
	// that.
	rejectedBurst = 50
	rejectedRate  = 5
	// maxSources bounds the number of sources in memory.
	maxSources = 16384
)

type sourceKey struct{}

// WithSource returns a context for reviews of tokens that came from source, such as the client's IP address.
func WithSource(ctx context.Context, source string) context.Context {
	return context.WithValue(ctx, sourceKey{}, source)
}

// Limiter is a Reviewer that limits, per source, how many invalid tokens are passed to another Reviewer. Valid tokens are not
// limited, since many arrive at once when jobs start. Create it with NewLimiter.
type Limiter struct {
	ask Reviewer
	now func() time.Time // replaced by tests

	mu      sync.Mutex
	sources *simplelru.LRU[string, tokenBucket]
}

// tokenBucket is the state of one source in the token bucket algorithm, whose tokens have nothing to do with bearer tokens.
type tokenBucket struct {
	tokens float64
	at     time.Time
}

// NewLimiter returns a Limiter in front of ask.
func NewLimiter(ask Reviewer) *Limiter {
	sources, _ := simplelru.NewLRU[string, tokenBucket](maxSources, nil) // it only fails for a size below 1
	return &Limiter{ask: ask, now: time.Now, sources: sources}
}

// Review calls the other Reviewer, or returns ErrTooMany.
func (l *Limiter) Review(ctx context.Context, token string) (Identity, error) {
	source, known := ctx.Value(sourceKey{}).(string)
	if !known {
		return l.ask.Review(ctx, token)
	}
	if !l.take(source) { // spent before the answer is known, so that concurrent reviews are limited too
		return Identity{}, ErrTooMany
	}
	identity, err := l.ask.Review(ctx, token)
	if !errors.Is(err, ErrUnknown) {
		l.put(source)
	}
	return identity, err
}

// take takes one token from a source's bucket; it returns false if the bucket is empty.
func (l *Limiter) take(source string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.refilledLocked(source)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	l.sources.Add(source, b)
	return true
}

// put returns a token to a source's bucket.
func (l *Limiter) put(source string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.refilledLocked(source)
	if b.tokens++; b.tokens >= rejectedBurst {
		l.sources.Remove(source)
		return
	}
	l.sources.Add(source, b)
}

func (l *Limiter) refilledLocked(source string) tokenBucket {
	now := l.now()
	b, known := l.sources.Get(source)
	if !known {
		return tokenBucket{tokens: rejectedBurst, at: now}
	}
	b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*rejectedRate, rejectedBurst)
	b.at = now
	return b
}
