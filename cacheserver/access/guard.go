// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/internal/reload"
)

// pollEvery is how often the file is read.
const pollEvery = 5 * time.Second

// Guard answers for each call who reads and whether it may. A nil Guard lets everybody read, and looks at no token. Make it with Open; it is
// safe for concurrent use.
type Guard struct {
	file       *reload.File[*rules]
	now        func() time.Time // replaced by tests
	unknownKey atomic.Pointer[string]
}

// Open reads the rules in a file.
func Open(path string) (*Guard, error) {
	file, err := reload.Open(path, parse)
	if err != nil {
		return nil, err
	}
	return &Guard{file: file, now: time.Now}, nil
}

// Watch follows the file, and that of the static tokens, until ctx ends. It calls changed when other rules hold.
func (g *Guard) Watch(ctx context.Context, log *slog.Logger, changed func()) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.look(log, changed)
		}
	}
}

// look reads the files again.
func (g *Guard) look(log *slog.Logger, changed func()) {
	before := g.file.Get()
	r := g.file.Fresh(0, log)
	if id := g.unknownKey.Load(); id != nil && r.hasKey(*id) {
		g.unknownKey.CompareAndSwap(id, nil)
	}
	if tokens := r.tokens; tokens != nil {
		tokens.Fresh(0, log)
	}
	if r != before {
		changed()
	}
}

func (r *rules) hasKey(id string) bool {
	for _, from := range r.issuers {
		if from.keys.Has(id) {
			return true
		}
	}
	return false
}

// Status is what a head's /status says of its rules.
type Status struct {
	Readers string `json:"readers"` // Known or Anyone
	// UnknownKey is the ID of the key of a token that could not be checked, as its issuer's keys in the file don't have it.
	UnknownKey string `json:"unknownKey,omitempty"`
}

// Status returns the state of the rules; nil for a nil Guard.
func (g *Guard) Status() *Status {
	if g == nil {
		return nil
	}
	s := &Status{Readers: readersAnyone}
	if g.file.Get().known {
		s.Readers = readersKnown
	}
	if id := g.unknownKey.Load(); id != nil {
		s.UnknownKey = *id
	}
	return s
}

// Known reports whether only readers with a right may read.
func (g *Guard) Known() bool { return g != nil && g.file.Get().known }

// PlainRows reports whether rows are sent in plain text, whatever the connection to the head is.
func (g *Guard) PlainRows() bool { return g != nil && g.file.Get().plainRows }

// Reader returns who makes a call to a head, nil if that is not known. secure says whether the call came over TLS. The error is a gRPC
// status: the caller may not read.
func (g *Guard) Reader(ctx context.Context, secure bool) (*identity.Identity, error) {
	if g == nil {
		return nil, nil
	}
	r := g.file.Get()
	if r.known && !secure {
		return nil, r.wantsTLS()
	}
	headers := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(headers) == 0 {
		if r.known {
			return nil, status.Errorf(codes.Unauthenticated, `this cache takes known readers, and the call has no token: in a TrainJob kubeflow_datacache sends it, elsewhere take it from "kubectl datacache login %s"`, r.name())
		}
		return nil, nil
	}
	token, ok := identity.FromHeaders(headers)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "authorization: want one header, Bearer TOKEN, or Basic with the token as password")
	}
	now := g.now()
	who, err := r.answers.of(token, now, func() (identity.Identity, time.Time, error) { return r.identify(ctx, token, now) })
	if err == nil {
		err = r.permits(who)
	}
	if err != nil {
		return nil, g.statusOf(err)
	}
	return &who, nil
}

// wantsTLS is the error of a plain call to a cache of known readers.
func (r *rules) wantsTLS() error {
	return status.Errorf(codes.Unauthenticated, `this cache takes known readers over TLS: use a TrainJob with kubeflow_datacache 0.2 or later, "kubectl datacache login %s", or access.readers: Anyone`, r.name())
}

// Stream returns why the reader of a ticket, nil for none, may not open a stream of a data node.
func (g *Guard) Stream(who *identity.Identity, secure bool) error {
	if g == nil {
		return nil
	}
	r := g.file.Get()
	if r.known && !secure && !r.plainRows {
		return r.wantsTLS()
	}
	return g.Permits(who)
}

// Permits returns why the reader of a ticket, nil for none, may not read on.
func (g *Guard) Permits(who *identity.Identity) error {
	if g == nil {
		return nil
	}
	r := g.file.Get()
	if who == nil && r.known {
		return status.Error(codes.Unauthenticated, "ticket: of no known reader, as this cache took everybody when it was made; ask the head for a new one")
	}
	if who != nil {
		if err := r.permits(*who); err != nil {
			return g.statusOf(err)
		}
	}
	return nil
}

// statusOf returns the gRPC status for the error of a check.
func (g *Guard) statusOf(err error) error {
	var key *identity.UnknownKeyError
	var forbidden *forbiddenError
	switch {
	case errors.As(err, &key):
		id := fmt.Sprintf("%.64s", key.ID)
		g.unknownKey.Store(&id)
		return status.Error(codes.Unavailable, err.Error())
	case errors.As(err, &forbidden):
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return status.Error(codes.Unauthenticated, err.Error())
}
