// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wait waits until caches are ready and prints their progress: it implements a TrainJob's dataset-initializer step.
package wait

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// Head is the head of a cache.
type Head struct {
	// Name of the cache, with which its lines begin; "" for the only cache.
	Name string
	// URL of the head's /status.
	URL string
	// Dataset is one that somebody puts into the cache, and for which to wait too; "": none.
	Dataset string
}

// Config configures a wait. Zero durations mean the defaults.
type Config struct {
	// Heads of the caches to wait for, at least one.
	Heads []Head
	// Counted ends the wait for a cache when its rows can be read, which may be before all are loaded (protocol.Status.ServesEarly).
	Counted bool
	// Timeout ends the wait; default 1 hour.
	Timeout time.Duration
	// Poll is the interval between requests; default 1 s.
	Poll time.Duration
	// Every is the interval between lines while only numbers change; default 10 s.
	Every time.Duration
	// Out receives the lines for people.
	Out io.Writer
	// Notices accepts connections with the controller's notices, which are printed to Out as well; nil: none are received. UntilReady
	// closes it.
	Notices net.Listener
}

// FailedError says that a cache failed (docs/adr/0005), and why.
type FailedError struct {
	Cache  string // "" for the only cache
	Reason string
}

func (e *FailedError) Error() string {
	if e.Cache == "" {
		return "the cache failed: " + e.Reason
	}
	return fmt.Sprintf("the cache %s failed: %s", e.Cache, e.Reason)
}

// TimeoutError says that caches were not ready in time, and their last known status.
type TimeoutError struct {
	After time.Duration
	Last  string
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("the cache was not ready after %s, last: %s; a larger table wants more time (env READY_TIMEOUT) or more data nodes", e.After, e.Last)
}

// UntilReady returns nil once all caches are ready; otherwise a *FailedError as soon as one of them has failed, a *TimeoutError or ctx's
// error. It waits for a head that does not respond yet, since its pod may still be starting.
func UntilReady(ctx context.Context, cfg Config) error {
	cfg.Timeout, cfg.Poll, cfg.Every = cmp.Or(cfg.Timeout, time.Hour), cmp.Or(cfg.Poll, time.Second), cmp.Or(cfg.Every, 10*time.Second)
	limited, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()

	told := &notices{}
	for _, head := range cfg.Heads {
		told.caches = append(told.caches, head.Name)
	}
	if cfg.Notices != nil {
		served := make(chan error, 1)
		go func() { served <- told.serve(limited, cfg.Notices) }()
		defer func() { cancel(); <-served }() // if serving ended early, only the log is less informative
	}
	out, begin := &lockedWriter{out: cfg.Out}, time.Now()
	all := make([]*waiter, len(cfg.Heads))
	group, waiting := errgroup.WithContext(limited)
	for i, head := range cfg.Heads {
		w := &waiter{head: head, counted: cfg.Counted, told: told, lines: progressPrinter{name: head.Name, out: out, every: cfg.Every, begin: begin}}
		all[i] = w
		group.Go(func() error { return w.wait(waiting, cfg.Poll) })
	}
	err := group.Wait()
	failed := (*FailedError)(nil)
	switch {
	case err == nil || errors.As(err, &failed):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("stopped while waiting for the cache: %w", context.Cause(ctx))
	}
	return timeout(cfg.Timeout, all)
}

// timeout is the error for caches of which some are not ready.
func timeout(after time.Duration, all []*waiter) *TimeoutError {
	var last []string
	for _, w := range all {
		if w.lines.state != protocol.StateReady {
			last = append(last, w.lines.last())
		}
	}
	return &TimeoutError{After: after, Last: strings.Join(last, "; ")}
}

// waiter waits for one cache.
type waiter struct {
	head    Head
	counted bool
	told    *notices
	lines   progressPrinter
}

// wait returns nil once the cache is ready, or counted, a *FailedError if it has failed, or ctx's error.
func (w *waiter) wait(ctx context.Context, poll time.Duration) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		status, err := getStatus(ctx, w.head.URL)
		switch {
		case ctx.Err() != nil: // the end of the wait canceled the request, so its error says nothing about the head
		case err != nil:
			w.lines.unreachable(err, w.told.of(w.head.Name), time.Now())
		default:
			w.awaitDataset(status)
			w.lines.status(status, w.told.of(w.head.Name), time.Now())
			if status.State == protocol.StateReady || w.counted && status.ServesEarly() {
				return nil
			}
			if status.State == protocol.StateFailed {
				return &FailedError{Cache: w.head.Name, Reason: status.Reason}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// awaitDataset changes the status of a cache that is ready and lacks the dataset, which training would not find.
func (w *waiter) awaitDataset(s *protocol.Status) {
	if w.head.Dataset == "" || s.State != protocol.StateReady {
		return
	}
	var others []string
	for _, d := range s.Datasets {
		switch {
		case d.Name != w.head.Dataset || d.State == "Replaced":
			others = append(others, d.Name)
		case d.State == "Ready":
			return
		default:
			s.State, s.Reason = stateWaiting, fmt.Sprintf("dataset %s is %s: %s", d.Name, d.State, d.Reason)
			return
		}
	}
	s.State, s.Reason = stateWaiting, fmt.Sprintf("for the dataset %s, which nobody has put yet; there are: %s", w.head.Dataset, cmp.Or(strings.Join(others, ", "), "none"))
}

// stateWaiting is the state of a cache that is ready and lacks the dataset.
const stateWaiting protocol.State = "Waiting"

// lockedWriter lets several caches' lines be written, one at a time.
type lockedWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lockedWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(line)
}

// maxStatus bounds the length of a response; the status of a thousand nodes takes 200 KB.
const maxStatus = 8 << 20

// requestTimeout bounds one request; the next one may reach another pod, which is alive.
const requestTimeout = 10 * time.Second

// getStatus requests the head's status once.
func getStatus(ctx context.Context, url string) (*protocol.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("the head's address: %w", err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, answer.Status)
	}
	status := &protocol.Status{}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxStatus)).Decode(status); err != nil {
		return nil, fmt.Errorf("%s answers no status: %w", url, err)
	}
	if status.State == "" {
		return nil, errors.New(url + " answers a status without a state: is it a cache's head?")
	}
	return status, nil
}
