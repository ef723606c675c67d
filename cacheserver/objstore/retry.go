// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// retry calls try until it succeeds, fails for good, or has been given all its
// attempts and time. The error it returns is the whole story for the user.
func (s *Store) retry(ctx context.Context, uri string, try func(ctx context.Context) error) error {
	start := s.now()
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
		if s.sleep(ctx, pause) != nil {
			return canceled(ctx, uri)
		}
	}
}

// pause is how long to wait after the given number of tries; random is in [0, 1).
func (r Retry) pause(tries int, random float64) time.Duration {
	d := r.MaxPause
	if shift := tries - 1; shift < 30 {
		d = min(d, r.FirstPause<<shift)
	}
	return d/2 + time.Duration(random*float64(d-d/2))
}

// request does one attempt within the Store's limit of concurrent ones. The
// context it hands to do ends when the attempt stalls: when neither alive was
// called nor do returned for Config.StallTimeout.
func (s *Store) request(ctx context.Context, do func(ctx context.Context, alive func()) error) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(s.cfg.StallTimeout, func() { cancel(errStalled) })
	defer watchdog.Stop()

	start := time.Now()
	err := do(ctx, func() { watchdog.Reset(s.cfg.StallTimeout) })
	s.stats.waited.Add(int64(time.Since(start)))
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return fmt.Errorf("no byte for %s: %w", s.cfg.StallTimeout, errStalled)
	}
	return err
}

// passing reports whether err may be gone at the next try. What is not an answer
// of the store is a broken connection, and passes unless it is known not to.
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

// sleep waits for d or the end of ctx.
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
