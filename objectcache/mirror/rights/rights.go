// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rights remembers which credentials upstream accepted for which repositories.
package rights

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/kubeflow/datacache/internal/flight"
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
	now      func() time.Time // replaced by tests
	stale    func()           // counts uses of a permission that upstream could not confirm again
	flights  flight.Group[struct{}]
	consents *lru.Cache[key, time.Time] // when upstream was last asked and consented
}

// key is a hash of credential and scope, so that no credentials are kept in memory.
type key [sha256.Size]byte

// New returns Rights that call stale when a consent is used although upstream fails.
func New(stale func()) *Rights {
	consents, _ := lru.New[key, time.Time](maxConsents) // it only fails for a size below 1
	return &Rights{now: time.Now, stale: stale, consents: consents}
}

// Check returns nil if upstream consents that a credential (empty: none) reads a scope, such as the name of a repository. It calls ask,
// whose nil is consent, unless the consent of the last MaxAge is known. While upstream fails (upstream.IsDown), a consent is valid for
// staleIfError longer. Other errors of ask are returned.
func (r *Rights) Check(ctx context.Context, credential, scope string, staleIfError time.Duration, ask func(ctx context.Context) error) error {
	of := sha256.Sum256([]byte(credential))
	id := key(sha256.Sum256(append(of[:], scope...)))
	if r.within(id, MaxAge) {
		return nil
	}
	_, err := r.flights.Do(ctx, string(id[:]), askTimeout, func(ctx context.Context) (struct{}, error) {
		if r.within(id, MaxAge) { // another question may have been answered after the first lookup
			return struct{}{}, nil
		}
		begun := r.now() // upstream decides after this time, so a consent is valid from here
		err := ask(ctx)
		if err == nil {
			r.consents.Add(id, begun)
		} else if !upstream.IsDown(err) {
			r.consents.Remove(id)
		}
		return struct{}{}, err
	})
	if ctx.Err() == nil && upstream.IsDown(err) && staleIfError > 0 && r.within(id, MaxAge+staleIfError) {
		r.stale()
		return nil
	}
	return err
}

func (r *Rights) within(id key, age time.Duration) bool {
	at, known := r.consents.Get(id)
	return known && r.now().Sub(at) < age
}

// Errors of requests that are refused before upstream is asked.
var (
	// ErrToken says that a cluster's token is not valid.
	ErrToken = errors.New("the token is not valid here: wrong audience, expired, or its pod is gone")
	// ErrUnreviewed says that a token could not be reviewed.
	ErrUnreviewed = errors.New("the token can't be reviewed now")
)
