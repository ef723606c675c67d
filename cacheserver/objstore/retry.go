// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// retry calls try until it succeeds, fails permanently, or attempts or time are exhausted. The error it returns is complete, fit for
// the user.
func (s *Store) retry(ctx context.Context, uri string, try func(ctx context.Context) error) error {
	start := s.now()
	var again retried
	defer s.stats.troubles.end(&again)
	for tries := 1; ; tries++ {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return canceled(ctx, uri)
		}
		pause := s.cfg.Retry.pause(tries, s.random())
		elapsed := s.now().Sub(start)
		if !passing(err) || tries >= s.cfg.Retry.Attempts || elapsed+pause > s.cfg.Retry.MaxTime {
			return s.failed(uri, tries, elapsed, err)
		}
		s.stats.retries.Add(1)
		s.stats.troubles.note(&again, fmt.Sprintf("%s: %v; trying again (attempt %d)", uri, err, tries+1))
		if s.sleep(ctx, pause) != nil {
			return canceled(ctx, uri)
		}
	}
}

// pause is the delay after the given number of attempts; random is in [0, 1).
func (r Retry) pause(tries int, random float64) time.Duration {
	d := r.MaxPause
	if shift := tries - 1; shift < 30 {
		d = min(d, r.FirstPause<<shift)
	}
	return d/2 + time.Duration(random*float64(d-d/2))
}

// Attempt makes one attempt, within the Store's limit of concurrent ones. The context passed to do is canceled when the attempt
// stalls: when during Config.StallTimeout do neither returned nor called alive with the number of bytes that arrived, or when it
// received fewer bytes than Config.MinRate requires. Such an error is a BrokenConnection.
func (s *Store) Attempt(ctx context.Context, do func(ctx context.Context, alive func(n int)) error) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(s.cfg.StallTimeout, func() {
		cancel(fmt.Errorf("no byte for %s: %w", s.cfg.StallTimeout, errStalled))
	})
	defer watchdog.Stop()

	start := time.Now()
	rate := pace{least: int64(float64(s.cfg.MinRate) * s.cfg.StallTimeout.Seconds()), period: s.cfg.StallTimeout, since: start}
	err := do(ctx, func(n int) {
		watchdog.Reset(s.cfg.StallTimeout)
		if err := rate.count(n, time.Now()); err != nil {
			cancel(err)
		}
	})
	s.stats.waited.Add(int64(time.Since(start)))
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

// pace checks that at least a given number of bytes arrive in each period.
type pace struct {
	least    int64
	period   time.Duration
	since    time.Time // start of the current period
	received int64     // in it
}

// count records n bytes that arrived now; it returns an error at the end of a period with too few bytes.
func (p *pace) count(n int, now time.Time) error {
	p.received += int64(n)
	took := now.Sub(p.since)
	if took < p.period {
		return nil
	}
	if p.received < p.least {
		return fmt.Errorf("the answer is slow: %.1f KB/s for %s: %w", float64(p.received)/1e3/took.Seconds(), took.Round(time.Second/10), errStalled)
	}
	p.since, p.received = now, 0
	return nil
}

// BrokenConnection reports whether err, from an HTTP request, means that no response arrived: network errors, time-outs, unresolved
// names, servers that closed the connection, and answers that stalled.
func BrokenConnection(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errStalled)
}

// passing reports whether err may be temporary. Errors that are not responses of the store are treated as broken connections, which
// are temporary, unless they are known to be permanent.
func passing(err error) bool {
	var r *refusal
	if errors.As(err, &r) {
		return r.passing()
	}
	if errors.Is(err, ErrChanged) || errors.Is(err, errProtocol) {
		return false
	}
	var (
		none      *credentialsError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
	)
	return !errors.As(err, &none) && !errors.As(err, &authority) && !errors.As(err, &host) && !errors.As(err, &invalid) && !errors.As(err, &record)
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
