// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/kubeflow/datacache/internal/flight"
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
	flights flight.Group[Identity]
	answers *lru.Cache[[sha256.Size]byte, answer] // by the token's hash, so that no tokens are kept in memory
}

type answer struct {
	identity Identity
	err      error // nil or ErrUnknown
	until    time.Time
}

// NewCache returns a Cache of ask's answers.
func NewCache(ask Reviewer) *Cache {
	answers, _ := lru.New[[sha256.Size]byte, answer](maxAnswers) // it only fails for a size below 1
	return &Cache{ask: ask, now: time.Now, answers: answers}
}

// Review returns the cached answer or calls the other Reviewer. Errors other than ErrUnknown are not cached.
func (c *Cache) Review(ctx context.Context, token string) (Identity, error) {
	key := sha256.Sum256([]byte(token))
	if known, ok := c.known(key); ok {
		return known.identity, known.err
	}
	return c.flights.Do(ctx, string(key[:]), askTimeout, func(ctx context.Context) (Identity, error) {
		if known, ok := c.known(key); ok { // another review may have finished after the first lookup
			return known.identity, known.err
		}
		begun := c.now() // the API server may have decided at any time from now on
		identity, err := c.ask.Review(ctx, token)
		switch {
		case err == nil:
			c.answers.Add(key, answer{identity: identity, until: begun.Add(MaxAge)})
		case errors.Is(err, ErrUnknown):
			c.answers.Add(key, answer{identity: identity, err: ErrUnknown, until: begun.Add(unknownAge)})
		}
		return identity, err
	})
}

// known returns the cached answer for a token's hash, unless it has expired.
func (c *Cache) known(key [sha256.Size]byte) (answer, bool) {
	a, ok := c.answers.Get(key)
	return a, ok && c.now().Before(a.until)
}
