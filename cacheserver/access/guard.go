// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/internal/reload"
)

// pollEvery is how often the file is read.
const pollEvery = 2 * time.Second

// Guard answers for each call who reads and whether it may. A nil Guard lets everybody read, and looks at no token. Make it with Open; it is
// safe for concurrent use.
type Guard struct {
	file       *reload.File[*rules]
	log        *slog.Logger
	now        func() time.Time // replaced by tests
	unknownKey atomic.Pointer[string]
	denials    *throttle

	mu      sync.Mutex
	changed map[*func()]bool // keys are what OnChange has registered
}

// Open reads the rules in a file. What readers do is written to the log.
func Open(path string, log *slog.Logger) (*Guard, error) {
	file, err := reload.Open(path, parse)
	if err != nil {
		return nil, err
	}
	return &Guard{file: file, log: log, now: time.Now, denials: newThrottle(), changed: map[*func()]bool{}}, nil
}

// OnChange registers what to call when other rules hold, until stop is called. A nil Guard has none.
func (g *Guard) OnChange(call func()) (stop func()) {
	if g == nil {
		return func() {}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.changed[&call] = true
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.changed, &call)
	}
}

// Watch follows the file, and that of the static tokens, until ctx ends.
func (g *Guard) Watch(ctx context.Context) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.Look()
		}
	}
}

// Look reads the files again now.
func (g *Guard) Look() {
	before := g.file.Get()
	r := g.file.Fresh(0, g.log)
	if id := g.unknownKey.Load(); id != nil && r.hasKey(*id) {
		g.unknownKey.CompareAndSwap(id, nil)
	}
	if tokens := r.tokens; tokens != nil {
		tokens.Fresh(0, g.log)
	}
	if r == before {
		return
	}
	g.mu.Lock()
	changed := slices.Collect(maps.Keys(g.changed))
	g.mu.Unlock()
	for _, call := range changed {
		(*call)()
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

// Status returns the state of the rules; nil for a nil Guard.
func (g *Guard) Status() *protocol.AccessStatus {
	if g == nil {
		return nil
	}
	s := &protocol.AccessStatus{Readers: readersAnyone}
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

// Scheme is the URI scheme of the locations for a call to a head: that of its connection, unless rows are sent in plain text anyway.
func (g *Guard) Scheme(ctx context.Context) string {
	if g != nil && g.file.Get().plainRows {
		return transport.SchemePlain
	}
	return transport.Scheme(ctx)
}

// Admit returns the check of calls without rows; nil for a nil Guard.
func (g *Guard) Admit() func(ctx context.Context) error {
	if g == nil {
		return nil
	}
	return func(ctx context.Context) error {
		_, err := g.Reader(ctx)
		return err
	}
}

// Reader returns who makes a call to a head, nil if that is not known. The error is a gRPC status: the caller may not read.
func (g *Guard) Reader(ctx context.Context) (*identity.Identity, error) {
	if g == nil {
		return nil, nil
	}
	who, err := g.reader(ctx, g.file.Get())
	if err != nil {
		g.denied(ctx, who, err)
		return nil, err
	}
	return who, nil
}

// Writer returns who makes a call to a head, nil if that is not known. If the caller may not put, replace and drop datasets, it returns a gRPC
// status that says why.
func (g *Guard) Writer(ctx context.Context) (*identity.Identity, error) {
	who, err := g.Reader(ctx)
	if err == nil {
		err = g.mayWrite(ctx, who)
	}
	if err != nil {
		return nil, err
	}
	return who, nil
}

// mayWrite returns why a reader may not write, as a gRPC status.
func (g *Guard) mayWrite(ctx context.Context, who *identity.Identity) error {
	if g == nil {
		return nil
	}
	err := g.file.Get().mayWrite(who)
	if err != nil {
		err = g.statusOf(err)
		g.denied(ctx, who, err)
	}
	return err
}

// reader returns who makes a call, also if it may not read.
func (g *Guard) reader(ctx context.Context, r *rules) (*identity.Identity, error) {
	if r.known && !transport.Secure(ctx) {
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
		return &who, g.statusOf(err)
	}
	return &who, nil
}

// wantsTLS is the error of a plain call to a cache of known readers.
func (r *rules) wantsTLS() error {
	return status.Errorf(codes.Unauthenticated, `this cache takes known readers over TLS: use kubeflow_datacache in a TrainJob, "kubectl datacache login %s", or access.readers: Anyone (READERS in a TrainJob)`, r.name())
}

// Stream returns why the reader of a ticket, nil for none, may not open a stream of a data node with a call.
func (g *Guard) Stream(ctx context.Context, who *identity.Identity) error {
	if g == nil {
		return nil
	}
	err := g.Permits(who)
	if r := g.file.Get(); r.known && !r.plainRows && !transport.Secure(ctx) {
		err = r.wantsTLS()
	}
	if err != nil {
		g.denied(ctx, who, err)
	}
	return err
}

// Put returns why the writer of a put's ticket, nil for none, may not send rows to a data node with a call.
func (g *Guard) Put(ctx context.Context, who *identity.Identity) error {
	if err := g.Stream(ctx, who); err != nil {
		return err
	}
	return g.mayWrite(ctx, who)
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
