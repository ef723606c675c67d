// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/internal/identity"
)

// The messages of the audit log.
const (
	auditAsked  = "audit: a reader asked for rows"
	auditOpened = "audit: a stream was opened"
	auditEnded  = "audit: a stream has ended"
	auditDenied = "audit: denied"
)

// Asked writes what a known reader has asked a head for, and how many rows the answer has.
func (g *Guard) Asked(ctx context.Context, r protocol.Request, rows int64) {
	g.log.Info(auditAsked, append(by(ctx, r.Reader), "job", r.Job, "claimed", r.Claimed, "kind", r.Kind, "columns", r.Columns, "filter", r.Filter, "rows", rows)...)
}

// Opened writes that a known reader has opened a stream of a data node. filter is the filter's ID, as heads name it to data nodes.
func (g *Guard) Opened(ctx context.Context, t protocol.Ticket, columns []string) {
	g.log.Info(auditOpened, append(by(ctx, t.Reader), "job", t.Job, "claimed", t.Claimed, "kind", t.Kind, "columns", columns, "filter", t.Filter)...)
}

// Ended writes that a known reader's stream has ended, with the rows that were sent.
func (g *Guard) Ended(ctx context.Context, t protocol.Ticket, rows int64, after time.Duration, err error) {
	line := append(by(ctx, t.Reader), "job", t.Job, "kind", t.Kind, "rows", rows, "after", after.Round(time.Millisecond))
	if err != nil {
		line = append(line, "reason", status.Convert(err).Message())
	}
	g.log.Info(auditEnded, line...)
}

// denied writes why a call was refused, at most once a second for each address.
func (g *Guard) denied(ctx context.Context, who *identity.Identity, err error) {
	if s := status.Convert(err); g.denials.passes(transport.Client(ctx), g.now()) {
		g.log.Warn(auditDenied, append(by(ctx, who), "code", s.Code(), "reason", s.Message())...)
	}
}

// by returns who and where a reader is, for a line of the log.
func by(ctx context.Context, who *identity.Identity) []any {
	if who == nil {
		who = &identity.Identity{}
	}
	return []any{slog.String("reader", who.Owner()), slog.String("pod", who.Pod), slog.String("client", transport.Client(ctx))}
}

const (
	// deniedEvery is the minimum time between two lines of refused calls of an address.
	deniedEvery = time.Second
	// maxAddresses bounds the number of addresses in memory.
	maxAddresses = 4096
)

// throttle limits lines by address. It is safe for concurrent use.
type throttle struct {
	mu   sync.Mutex
	last *simplelru.LRU[string, time.Time]
}

func newThrottle() *throttle {
	last, _ := simplelru.NewLRU[string, time.Time](maxAddresses, nil) // it only fails for a size below 1
	return &throttle{last: last}
}

// passes reports whether the last line of an address is long enough ago.
func (t *throttle) passes(address string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, ok := t.last.Get(address); ok && now.Sub(last) < deniedEvery {
		return false
	}
	t.last.Add(address, now)
	return true
}
