// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
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

// serveChanges answers a request for changesPath. It only accepts addresses of other object caches, since the IDs reveal the
// existence of objects whose names can be guessed.
func (s *Server) serveChanges(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !s.cfg.Router.HasHost(host) {
		http.Error(w, "only for other object caches", http.StatusForbidden)
		return
	}
	ms, err := strconv.ParseUint(r.URL.Query().Get("ms"), 10, 42)
	if err != nil {
		http.Error(w, "want ?ms=N", http.StatusBadRequest)
		return
	}
	changes, err := s.cfg.Store.Changed(time.Now().Add(-time.Duration(ms) * time.Millisecond))
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
func (s *Server) returned(ctx context.Context, since time.Time) error {
	now := time.Now()
	s.catching.Lock()
	if s.doubt.Load() != nil && s.away.since.Before(since) {
		since = s.away.since // what happened in the absence before is not known yet either
	}
	s.away = &absence{since: since, until: now, asked: map[string]bool{}}
	s.catching.Unlock()
	s.doubt.Store(&now)
	return s.catchUp(ctx)
}

// catchUp asks the members that were not asked since the last absence, and removes what they changed. An error is one of the disk.
func (s *Server) catchUp(ctx context.Context) error {
	s.catching.Lock()
	defer s.catching.Unlock()
	if s.away == nil {
		return nil
	}
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(16)
	var mu sync.Mutex
	all := true
	for _, other := range s.cfg.Router.Others() {
		if s.away.asked[other.Name] {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(asking, catchUpTimeout)
			defer cancel()
			done, err := s.catchUpWith(ctx, other)
			mu.Lock()
			defer mu.Unlock()
			if done {
				s.away.asked[other.Name] = true
			}
			all = all && done
			return err
		})
	}
	if err := group.Wait(); err != nil || !all {
		return err
	}
	s.doubt.Store(nil)
	return nil
}

// catchUpWith removes the objects that another member changed during the absence; done is false if the member must be asked again.
func (s *Server) catchUpWith(ctx context.Context, other router.Member) (done bool, err error) {
	ids, err := s.changesAt(ctx, other, time.Since(s.away.since)+s.slack)
	if errors.Is(err, store.ErrForgotten) {
		s.cfg.Log.Warn("what another object cache changed is not known: all objects of before are removed", "member", other.Name)
		err = s.cfg.Store.Clear(s.away.until)
		return err == nil, err
	}
	if err == nil {
		err = s.cfg.Store.Discard(ids, s.away.until)
		_ = ids.Close() // opened for reading: closing can't lose data
	}
	if err != nil {
		s.cfg.Log.Debug("what another object cache changed is not known yet", "member", other.Name, "error", err)
		return false, nil
	}
	return true, nil
}

// changesAt requests the changes from another member. It returns store.ErrForgotten if the member does not know them.
func (s *Server) changesAt(ctx context.Context, member router.Member, absence time.Duration) (io.ReadCloser, error) {
	url := fmt.Sprintf("%s://%s%s?ms=%d", s.scheme(), member.Address, changesPath, absence.Milliseconds()+1)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.transport.RoundTrip(request)
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
func (s *Server) Return(ctx context.Context) error {
	if s.cfg.Fixed || s.cfg.Store.Empty() {
		return nil
	}
	since, known := s.cfg.Store.LastAlive()
	if !known || time.Since(since) < -s.slack { // the clock was set back
		return s.cfg.Store.Clear(time.Now())
	}
	if err := s.returned(ctx, since); err != nil {
		s.logDisk("what others changed was not removed", err) // KeepAlive tries again
	}
	return nil
}

// KeepAlive catches up with members that could not be asked yet, and records that the store is in use, at intervals until ctx ends. Call
// it after Return.
func (s *Server) KeepAlive(ctx context.Context) {
	ticker := time.NewTicker(catchUpInterval)
	defer ticker.Stop()
	for n := 0; ; n++ {
		if err := s.catchUp(ctx); err != nil {
			s.logDisk("what others changed was not removed", err)
		}
		// While objects are in doubt, the next start must ask for the whole time.
		if n%int(aliveInterval/catchUpInterval) == 0 && s.absent.Load() == nil && s.doubt.Load() == nil {
			s.cfg.Store.Touch()
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
func (s *Server) SetMembers(ctx context.Context, members []router.Member) {
	leaves := s.cfg.Router.Present() && !router.Contains(members, s.cfg.Router.Self())
	now := time.Now()
	s.cfg.Router.Set(members) // first, so that clients' requests are forwarded and not rejected
	if leaves {
		s.absent.Store(&now)
	}
	since := s.absent.Load()
	if since == nil || !s.cfg.Router.Present() {
		return
	}
	if err := s.returned(ctx, *since); err != nil {
		s.logDisk("what others changed was not removed", err) // KeepAlive tries again
	}
	s.absent.Store(nil)
}

// staleBefore returns the time before which this node's copy of an object may be outdated; zero if it is not.
func (s *Server) staleBefore(bucket, key string) time.Time {
	since := s.cfg.Router.OwnedSince(bucket, key)
	if doubt := s.doubt.Load(); doubt != nil && doubt.After(since) {
		return *doubt
	}
	return since
}
