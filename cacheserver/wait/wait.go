// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wait waits until a cache is ready and prints its progress: it implements a TrainJob's dataset-initializer step.
package wait

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// Config configures a wait. Zero durations mean the defaults.
type Config struct {
	// URL of the head's /status.
	URL string
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

// FailedError says that the cache failed (docs/adr/0005), and why.
type FailedError struct{ Reason string }

func (e *FailedError) Error() string { return "the cache failed: " + e.Reason }

// TimeoutError says that the cache was not ready in time, and its last known status.
type TimeoutError struct {
	After time.Duration
	Last  string
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("the cache was not ready after %s, last: %s; a larger table wants more time (env READY_TIMEOUT) or more data nodes", e.After, e.Last)
}

// UntilReady returns nil once the cache is ready; otherwise a *FailedError, a *TimeoutError or ctx's error. It waits for a head that
// does not respond yet, since its pod may still be starting.
func UntilReady(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	limited, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()

	told := &notices{}
	lines := progressPrinter{out: cfg.Out, every: cfg.Every, begin: time.Now()}
	if cfg.Notices != nil {
		served := make(chan error, 1)
		go func() { served <- told.serve(limited, cfg.Notices) }()
		defer func() { cancel(); <-served }() // if serving ended early, only the log is less informative
	}
	ticker := time.NewTicker(cfg.Poll)
	defer ticker.Stop()
	for {
		status, err := getStatus(limited, cfg)
		switch {
		case limited.Err() != nil: // the timeout canceled the request, so its error says nothing about the head
		case err != nil:
			lines.unreachable(err, told.now(), time.Now())
		default:
			lines.status(status, told.now(), time.Now())
			if status.State == protocol.StateReady {
				return nil
			}
			if status.State == protocol.StateFailed {
				return &FailedError{Reason: status.Reason}
			}
		}
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return fmt.Errorf("stopped while waiting for the cache: %w", context.Cause(ctx))
			}
			return &TimeoutError{After: cfg.Timeout, Last: lines.last()}
		case <-ticker.C:
		}
	}
}

func (c Config) withDefaults() Config {
	if c.Timeout <= 0 {
		c.Timeout = time.Hour
	}
	if c.Poll <= 0 {
		c.Poll = time.Second
	}
	if c.Every <= 0 {
		c.Every = 10 * time.Second
	}
	return c
}

// maxStatus bounds the length of a response; the status of a thousand nodes takes 200 KB.
const maxStatus = 8 << 20

// requestTimeout bounds one request; the next one may reach another pod, which is alive.
const requestTimeout = 10 * time.Second

// getStatus requests the head's status once.
func getStatus(ctx context.Context, cfg Config) (*protocol.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.URL, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("the head's address: %w", err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", cfg.URL, answer.Status)
	}
	status := &protocol.Status{}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxStatus)).Decode(status); err != nil {
		return nil, fmt.Errorf("%s answers no status: %w", cfg.URL, err)
	}
	if status.State == "" {
		return nil, errors.New(cfg.URL + " answers a status without a state: is it a cache's head?")
	}
	return status, nil
}
