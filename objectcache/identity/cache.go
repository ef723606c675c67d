// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// MaxAge is how long an answer is cached: a revoked token is accepted for at most that long.
	MaxAge = 60 * time.Second
	// unknownAge is how long the rejection of a token is cached.
	unknownAge = 10 * time.Second
	// maxAnswers bounds the number of cached answers, and so the memory that made-up tokens can use.
	maxAnswers = 16384
	// askTimeout is the timeout of one review.
	askTimeout = 10 * time.Second
)

// Cache is a Reviewer that caches another's answers, and shares one review between concurrent requests with the same token.
// Create it with NewCache.
type Cache struct {
	ask     Reviewer
	now     func() time.Time // replaced by tests
	flights singleflight.Group

	mu      sync.Mutex
	answers map[[sha256.Size]byte]answer // by the token's hash, so that no tokens are kept in memory
}

type answer struct {
	identity Identity
	err      error // nil or ErrUnknown
	until    time.Time
}

// NewCache returns a Cache of ask's answers.
func NewCache(ask Reviewer) *Cache {
	return &Cache{ask: ask, now: time.Now, answers: map[[sha256.Size]byte]answer{}}
}

// Review returns the cached answer or calls the other Reviewer. Errors other than ErrUnknown are not cached.
func (c *Cache) Review(ctx context.Context, token string) (Identity, error) {
	key := sha256.Sum256([]byte(token))
	if known, ok := c.known(key); ok {
		return known.identity, known.err
	}
	// Other callers share this review, so the cancellation of the first caller must not end it.
	asked := context.WithoutCancel(ctx)
	result := c.flights.DoChan(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(asked, askTimeout)
		defer cancel()
		if known, ok := c.known(key); ok { // another review may have finished after the first lookup
			return known.identity, known.err
		}
		begun := c.now() // the API server may have decided at any time from now on
		identity, err := c.ask.Review(ctx, token)
		c.remember(key, identity, err, begun)
		return identity, err
	})
	select {
	case r := <-result:
		return r.Val.(Identity), r.Err //nolint:forcetypeassert // the function passed to DoChan returns no other type
	case <-ctx.Done():
		return Identity{}, context.Cause(ctx)
	}
}

// known returns the cached answer for a token's hash, unless it has expired.
func (c *Cache) known(key [sha256.Size]byte) (answer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.answers[key]
	return a, ok && c.now().Before(a.until)
}

func (c *Cache) remember(key [sha256.Size]byte, identity Identity, err error, begun time.Time) {
	age := MaxAge
	if errors.Is(err, ErrUnknown) {
		err, age = ErrUnknown, unknownAge
	}
	if err != nil && !errors.Is(err, ErrUnknown) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.answers) >= maxAnswers {
		c.thinLocked()
	}
	c.answers[key] = answer{identity: identity, err: err, until: begun.Add(age)}
}

// thinLocked removes expired answers, and then arbitrary ones until half of the space is free.
func (c *Cache) thinLocked() {
	now := c.now()
	for key, a := range c.answers {
		if !now.Before(a.until) {
			delete(c.answers, key)
		}
	}
	for key := range c.answers {
		if len(c.answers) <= maxAnswers/2 {
			return
		}
		delete(c.answers, key)
	}
}
