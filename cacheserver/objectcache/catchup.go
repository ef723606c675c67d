// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/objectcache/router"
)

// While a node is absent, other nodes store and remove objects whose keys it owns. When it returns, it asks all of them what changed
// and removes its own copies of those objects before it serves anything, so it never serves an object that was replaced or removed.
// If any of them can't tell, it removes all its objects.

const (
	// changesPath returns to other object caches the IDs of objects that changed on this node within the last N milliseconds (?ms=N).
	changesPath = "/v1/changes"
	// catchUpSlack is added to the duration of an absence, since other nodes learn of its start with a delay.
	catchUpSlack = time.Minute
	// catchUpTimeout is the timeout of one request.
	catchUpTimeout = 10 * time.Second
	// aliveInterval is how often a serving node records that it is alive.
	aliveInterval = 5 * time.Second
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
	ids, err := s.cfg.Store.Changed(time.Now().Add(-time.Duration(ms) * time.Millisecond))
	if err != nil {
		http.Error(w, err.Error(), http.StatusGone)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(ids) // if the connection breaks, the body is shorter than its Content-Length
}

// CatchUp removes the objects that other members changed since the given time, at which this node was last known to be serving.
// Nothing may be served meanwhile.
func (s *Server) CatchUp(ctx context.Context, since time.Time) error {
	others := s.cfg.Router.Others()
	absence := time.Since(since) + s.slack
	changed := make([][]byte, len(others))
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i, other := range others {
		group.Go(func() (err error) {
			changed[i], err = s.changesAt(asking, other, absence)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		s.cfg.Log.Warn("what other object caches changed is not known: all objects are removed", "error", err)
		return s.cfg.Store.Clear()
	}
	for _, ids := range changed {
		if err := s.cfg.Store.Discard(ids); err != nil {
			return err
		}
	}
	return nil
}

// changesAt requests the changes from another member.
func (s *Server) changesAt(ctx context.Context, member router.Member, absence time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	url := fmt.Sprintf("%s://%s%s?ms=%d", s.scheme(), member.Address, changesPath, absence.Milliseconds()+1)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // opened for reading: closing can't lose data
	ids, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status + ": " + strings.TrimSpace(string(ids)))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", member.Name, err)
	}
	return ids, nil
}

// Return calls CatchUp at startup, for the time since the store was last in use.
func (s *Server) Return(ctx context.Context) error {
	if s.cfg.Store.Empty() {
		return nil
	}
	since, known := s.cfg.Store.LastAlive()
	if !known {
		return s.cfg.Store.Clear()
	}
	return s.CatchUp(ctx, since)
}

// KeepAlive records that the store is in use, at intervals until ctx ends. Call it after Return.
func (s *Server) KeepAlive(ctx context.Context) {
	ticker := time.NewTicker(aliveInterval)
	defer ticker.Stop()
	for {
		if s.absent.Load() == nil {
			s.cfg.Store.Touch()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// SetMembers replaces the Router's members. When this node becomes a member again, SetMembers catches up with the others before it
// returns, and requests are rejected until then.
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
	if err := s.CatchUp(ctx, *since); err != nil {
		s.logDisk("what others changed was not removed", err)
		return // requests are rejected until the members change again
	}
	s.absent.Store(nil)
}
