// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rights remembers which credentials upstream accepted for which repositories.
package rights

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
)

const (
	// MaxAge is how long upstream's consent is remembered: a revoked credential reads for at most that long.
	MaxAge = 60 * time.Second
	// maxConsents bounds the memory that made-up names can use.
	maxConsents = 16384
	// askTimeout is the time limit of one question.
	askTimeout = 30 * time.Second
)

// Rights are the consents of upstream servers. Create them with New; they may be shared.
type Rights struct {
	now     func() time.Time // replaced by tests
	stale   func()           // counts a consent that is used although upstream fails
	flights singleflight.Group

	mu       sync.Mutex
	consents map[key]time.Time // when upstream was last asked and consented
}

// key is a hash of credential and scope, so that no credentials are kept in memory.
type key [sha256.Size]byte

// New returns Rights that call stale when a consent is used although upstream fails.
func New(stale func()) *Rights {
	return &Rights{now: time.Now, stale: stale, consents: map[key]time.Time{}}
}

// Check returns nil if upstream consents that a credential (empty: none) reads a scope, such as the name of a repository. It calls ask,
// whose nil is consent, unless the consent of the last MaxAge is known. While upstream fails (upstream.IsDown), a consent is valid for
// staleIfError longer. Other errors of ask are returned.
func (r *Rights) Check(ctx context.Context, credential, scope string, staleIfError time.Duration, ask func(ctx context.Context) error) error {
	id := identify(credential, scope)
	if r.within(id, MaxAge) {
		return nil
	}
	shared := context.WithoutCancel(ctx) // other requests may be waiting for this answer
	result := r.flights.DoChan(string(id[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(shared, askTimeout)
		defer cancel()
		if r.within(id, MaxAge) { // another question may have been answered after the first lookup
			return nil, nil
		}
		begun := r.now() // upstream decides after this time, so a consent is valid from here
		err := ask(ctx)
		if err == nil {
			r.remember(id, begun)
		} else if !upstream.IsDown(err) {
			r.forget(id)
		}
		return nil, err
	})
	select {
	case answer := <-result:
		if upstream.IsDown(answer.Err) && staleIfError > 0 && r.within(id, MaxAge+staleIfError) {
			r.stale()
			return nil
		}
		return answer.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Grant records that upstream consented to a request that began at a time.
func (r *Rights) Grant(credential, scope string, begun time.Time) {
	r.remember(identify(credential, scope), begun)
}

// Fresh reports whether upstream's consent within MaxAge is known.
func (r *Rights) Fresh(credential, scope string) bool {
	return r.within(identify(credential, scope), MaxAge)
}

func identify(credential, scope string) key {
	of := sha256.Sum256([]byte(credential))
	return sha256.Sum256(append(of[:], scope...))
}

func (r *Rights) within(id key, age time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, known := r.consents[id]
	return known && r.now().Sub(at) < age
}

func (r *Rights) remember(id key, begun time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.consents) >= maxConsents {
		r.thinLocked()
	}
	r.consents[id] = begun
}

func (r *Rights) forget(id key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.consents, id)
}

// thinLocked removes consents that have aged, and then arbitrary ones until half of the space is free.
func (r *Rights) thinLocked() {
	now := r.now()
	for id, at := range r.consents {
		if now.Sub(at) >= MaxAge {
			delete(r.consents, id)
		}
	}
	for id := range r.consents {
		if len(r.consents) <= maxConsents/2 {
			return
		}
		delete(r.consents, id)
	}
}

// Errors of requests that are refused before upstream is asked.
var (
	// ErrToken says that a cluster's token is not valid.
	ErrToken = errors.New("the token is not valid here: wrong audience, expired, or its pod is gone")
	// ErrUnreviewed says that a token could not be reviewed.
	ErrUnreviewed = errors.New("the token can't be reviewed now")
)
