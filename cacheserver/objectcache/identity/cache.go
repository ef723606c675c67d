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
	// MaxAge is how long an answer is believed: so long may a token that was revoked still be good.
	MaxAge = 60 * time.Second
	// unknownAge is how long a token that is nobody's is refused without asking again.
	unknownAge = 10 * time.Second
	// maxAnswers bounds the memory that invented tokens can take.
	maxAnswers = 16384
	// askTimeout bounds one question.
	askTimeout = 10 * time.Second
)

// Cache is a Reviewer that remembers another's answers, and asks once for what many want to know at a time. Make it with
// NewCache.
type Cache struct {
	ask     Reviewer
	now     func() time.Time // replaced by tests
	flights singleflight.Group

	mu      sync.Mutex
	answers map[[sha256.Size]byte]answer // by the token's hash: memory that leaks gives no token away
}

type answer struct {
	identity Identity
	err      error // nil or ErrUnknown
	until    time.Time
}

// NewCache returns a Cache in front of ask.
func NewCache(ask Reviewer) *Cache {
	return &Cache{ask: ask, now: time.Now, answers: map[[sha256.Size]byte]answer{}}
}

// Review gives the remembered answer, or asks. That nobody could say is not remembered.
func (c *Cache) Review(ctx context.Context, token string) (Identity, error) {
	key := sha256.Sum256([]byte(token))
	if known, ok := c.known(key); ok {
		return known.identity, known.err
	}
	// The question is not the first caller's alone: its leaving must not be the others' answer.
	asked := context.WithoutCancel(ctx)
	result := c.flights.DoChan(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(asked, askTimeout)
		defer cancel()
		if known, ok := c.known(key); ok { // another flight ended after this caller looked
			return known.identity, known.err
		}
		begun := c.now() // an answer is as old as its question
		identity, err := c.ask.Review(ctx, token)
		c.remember(key, identity, err, begun)
		return identity, err
	})
	select {
	case r := <-result:
		return r.Val.(Identity), r.Err //nolint:forcetypeassert // the flight returns nothing else
	case <-ctx.Done():
		return Identity{}, context.Cause(ctx)
	}
}

// known is the answer to a token's hash that is not out of date.
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

// thinLocked forgets what is out of date, and if that is not enough, half of the rest, whichever.
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
