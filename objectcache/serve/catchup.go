// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/store"
)

// While a node is absent, other nodes store and remove objects whose keys it owns. When it returns, it asks all of them what changed
// and removes its own copies of those objects. Until all have answered, or are no longer members, its objects of before the absence are
// misses, so it never serves an object that was replaced or removed. If one of them does not know, it removes all of those objects. A
// member that appears later for the first time, such as one that was away at the same time, is asked then.

const (
	// changesPath returns to other object caches the IDs of objects that changed on this node within the last N milliseconds (?ms=N).
	changesPath = "/v1/changes"
	// catchUpSlack is added to the duration of an absence, since other nodes learn of its start with a delay.
	catchUpSlack = time.Minute
	// catchUpTimeout is the timeout of one request.
	catchUpTimeout = 10 * time.Second
	// aliveInterval is how often a serving node records that it is alive.
	aliveInterval = 5 * time.Second
	// catchUpInterval is how often members are asked that could not be asked before.
	catchUpInterval = time.Second
)

// Membership is whether this node is one of the members, and how far it has caught up after an absence. New creates one; it may be shared.
type Membership struct {
	router *router.Router
	store  *store.Store
	peers  *Peers
	fixed  bool
	slack  time.Duration             // catchUpSlack, except in tests
	absent atomic.Pointer[time.Time] // since when this node is not a member; nil: it is one, or never was
	doubt  atomic.Pointer[time.Time] // objects stored before it count as misses until the others have said what they changed; nil: none
	log    *slog.Logger
	disk   *diskLog

	mu   sync.Mutex // held while members are asked
	away *absence   // the last one; nil: none since the start
}

// serveChanges answers a request for changesPath. It only accepts addresses of other object caches, since the IDs reveal the
// existence of objects whose names can be guessed.
func (m *Membership) serveChanges(w http.ResponseWriter, r *http.Request) {
	if !m.peers.Sent(r) {
		http.Error(w, "only for other object caches", http.StatusForbidden)
		return
	}
	ms, err := strconv.ParseUint(r.URL.Query().Get("ms"), 10, 42)
	if err != nil {
		http.Error(w, "want ?ms=N", http.StatusBadRequest)
		return
	}
	changes, err := m.store.Changed(time.Now().Add(-time.Duration(ms) * time.Millisecond))
	if err != nil {
		http.Error(w, err.Error(), http.StatusGone)
		return
	}
	defer func() { _ = changes.Close() }() // opened for reading: closing can't lose data
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := changes.WriteTo(w); err != nil {
		panic(http.ErrAbortHandler) // closes the connection, so that the other member notices that the body is incomplete
	}
}

// absence is a time during which other members may have stored or removed objects in this one's place.
type absence struct {
	since, until time.Time
	asked        map[string]bool // names of members whose changes are known
}

// returned begins to catch up after an absence that ends now.
func (m *Membership) returned(ctx context.Context, since time.Time) error {
	now := time.Now()
	m.mu.Lock()
	if m.doubt.Load() != nil && m.away.since.Before(since) {
		since = m.away.since // what happened in the absence before is not known yet either
	}
	m.away = &absence{since: since, until: now, asked: map[string]bool{}}
	m.mu.Unlock()
	m.doubt.Store(&now)
	return m.catchUp(ctx)
}

// catchUp asks the members that were not asked since the last absence, and removes what they changed. An error is one of the disk.
func (m *Membership) catchUp(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away == nil {
		return nil
	}
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(16)
	var mu sync.Mutex
	all := true
	unasked := slices.DeleteFunc(m.router.Others(), func(other router.Member) bool { return m.away.asked[other.Name] })
	for _, other := range unasked {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(asking, catchUpTimeout)
			defer cancel()
			done, err := m.catchUpWith(ctx, other)
			mu.Lock()
			defer mu.Unlock()
			if done {
				m.away.asked[other.Name] = true
			}
			all = all && done
			return err
		})
	}
	if err := group.Wait(); err != nil || !all {
		return err
	}
	m.doubt.Store(nil)
	return nil
}

// catchUpWith removes the objects that another member changed during the absence; done is false if the member must be asked again.
func (m *Membership) catchUpWith(ctx context.Context, other router.Member) (done bool, err error) {
	ids, err := m.changesAt(ctx, other, time.Since(m.away.since)+m.slack)
	if errors.Is(err, store.ErrForgotten) {
		m.log.Warn("what another object cache changed is not known: all objects of before are removed", "member", other.Name)
		err = m.store.Clear(m.away.until)
		return err == nil, err
	}
	if err == nil {
		err = m.store.Discard(ids, m.away.until)
		_ = ids.Close() // opened for reading: closing can't lose data
	}
	if err != nil {
		m.log.Debug("what another object cache changed is not known yet", "member", other.Name, "error", err)
		return false, nil
	}
	return true, nil
}

// changesAt requests the changes from another member. It returns store.ErrForgotten if the member does not know them.
func (m *Membership) changesAt(ctx context.Context, member router.Member, absence time.Duration) (io.ReadCloser, error) {
	response, err := m.peers.get(ctx, member, fmt.Sprintf("%s?ms=%d", changesPath, absence.Milliseconds()+1))
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	_ = response.Body.Close() // nothing is read from it
	if response.StatusCode == http.StatusGone {
		return nil, store.ErrForgotten
	}
	return nil, fmt.Errorf("%s: %s", member.Name, response.Status)
}

// Return catches up at startup, for the time since the store was last in use. Members that can't be asked yet are asked by KeepAlive.
func (m *Membership) Return(ctx context.Context) error {
	if m.fixed || m.store.Empty() {
		return nil
	}
	since, known := m.store.LastAlive()
	if !known || time.Since(since) < -m.slack { // how long it was away is not known, or the clock was set back
		return m.store.Clear(time.Now())
	}
	if err := m.returned(ctx, since); err != nil {
		m.disk.warn("what others changed was not removed", err) // KeepAlive tries again
	}
	return nil
}

// KeepAlive catches up with members that could not be asked yet, and records that the store is in use, at intervals until ctx ends. Call
// it after Return.
func (m *Membership) KeepAlive(ctx context.Context) {
	ticker := time.NewTicker(catchUpInterval)
	defer ticker.Stop()
	for n := 0; ; n++ {
		if err := m.catchUp(ctx); err != nil {
			m.disk.warn("what others changed was not removed", err)
		}
		// While objects are in doubt, the next start must ask for the whole time.
		if n%int(aliveInterval/catchUpInterval) == 0 && m.absent.Load() == nil && m.doubt.Load() == nil {
			m.store.Touch()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// SetMembers replaces the Router's members. When this node becomes a member again, its objects of before are misses until the others
// have said what they changed.
func (m *Membership) SetMembers(ctx context.Context, members []router.Member) {
	leaves := m.router.Present() && !router.Contains(members, m.router.Self())
	now := time.Now()
	m.router.Set(members) // first, so that clients' requests are forwarded and not rejected
	if leaves {
		m.absent.Store(&now)
	}
	since := m.absent.Load()
	if since == nil || !m.router.Present() {
		return
	}
	if err := m.returned(ctx, *since); err != nil {
		m.disk.warn("what others changed was not removed", err) // KeepAlive tries again
	}
	m.absent.Store(nil)
}

// staleBefore returns the time before which this node's copy of an object may be outdated; zero if it is not.
func (m *Membership) staleBefore(bucket, key string) time.Time {
	since := m.router.OwnedSince(bucket, key)
	if doubt := m.doubt.Load(); doubt != nil && doubt.After(since) {
		return *doubt
	}
	return since
}
