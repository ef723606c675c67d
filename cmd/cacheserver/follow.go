// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/internal/redact"
)

// follow shows the progress of a load: a line per second that overwrites itself on a terminal, or one every ten seconds in a log. It
// calls onReady once, when the cache is ready for the first time, and onFailed when it has failed.
func follow(ctx context.Context, h *head.Head, log *slog.Logger, onReady func(), onFailed func(reason string)) {
	terminal := term.IsTerminal(int(os.Stderr.Fd()))
	every := 10 * time.Second
	if terminal {
		every = time.Second
	}
	f := follower{begin: time.Now(), last: time.Now().Add(-every), every: every, log: log, terminal: terminal, onReady: onReady, onFailed: onFailed}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			f.look(h.Report(), now)
		}
	}
}

// follower remembers what was shown last.
type follower struct {
	begin, last time.Time
	every       time.Duration
	state       protocol.State
	ready       bool
	terminal    bool
	log         *slog.Logger
	onReady     func()
	onFailed    func(reason string)
}

func (f *follower) look(s protocol.Status, now time.Time) {
	loading := s.State == protocol.StatePlanning || s.State == protocol.StateLoading
	if loading && now.Sub(f.last) >= f.every {
		f.last = now
		f.progress(redact.Writer(os.Stderr), s, now)
	}
	if s.State == f.state {
		return
	}
	f.state = s.State
	switch s.State {
	case protocol.StateReady:
		f.log.Info("ready", "rows", s.Rows, "bytes", s.Bytes, "snapshot", s.Snapshot, "after", now.Sub(f.begin).Round(time.Millisecond))
		if !f.ready {
			f.ready = true
			f.onReady()
		}
	case protocol.StateFailed:
		f.onFailed(s.Reason)
	case protocol.StateDegraded:
		f.log.Warn("degraded", "reason", s.Reason)
	}
}

func (f *follower) progress(w io.Writer, s protocol.Status, now time.Time) {
	if !f.terminal {
		f.log.Info(s.Reason, "rows", s.Rows, "bytes", s.Bytes)
		return
	}
	elapsed := now.Sub(f.begin)
	line := fmt.Sprintf("%s  %d rows  %.2f GB  %.0f MB/s", s.Reason, s.Rows, float64(s.Bytes)/1e9, float64(s.Bytes)/1e6/max(elapsed.Seconds(), 0.1))
	if done := s.Splits.Done; done > 0 && s.State == protocol.StateLoading {
		eta := elapsed / time.Duration(done) * time.Duration(s.Splits.Total-done)
		line += fmt.Sprintf("  %s left", eta.Round(time.Second))
	}
	_, _ = fmt.Fprintf(w, "\r\033[K%s\n\033[A", line)
}
