// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch serves the page on which people look at a server: complete without JavaScript, and kept current with it.
//
// The same Page shows a head, a data node and an object cache: each implements [Source]. Every text is escaped as it is written, and
// passes package redact. The page needs no inline script or style, which its Content-Security-Policy forbids.
package watch

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeflow/datacache/internal/webpage"
)

const (
	// interval is the time between two samples, and the minimum between two messages to a listener.
	interval = time.Second
	// maxListeners is the number of connections to /events; others get 503, and their page polls.
	maxListeners = 64
	// commentEvery is the time after which a listener that was sent nothing is sent a comment.
	commentEvery = 15 * time.Second
	// writeTimeout is how long a listener may take to read a message.
	writeTimeout = 10 * time.Second
)

// Page serves the page of a Source. Make it with New; it is safe for concurrent use.
type Page struct {
	source    Source
	history   *history
	listeners atomic.Int64

	mu       sync.Mutex
	sections []section // the last ones rendered for listeners
	drawn    int       // count of samples when the charts were last drawn
	tick     chan struct{}
}

// New returns a page whose history is empty.
func New(source Source) *Page {
	return &Page{source: source, history: newHistory(source.Series()), tick: make(chan struct{})}
}

// Run takes a sample each second and wakes the listeners, until ctx ends.
func (p *Page) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for now := time.Now(); ; {
		p.sample(now)
		select {
		case now = <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Page) sample(now time.Time) {
	p.history.add(p.source.Sample(), now)
	if p.listeners.Load() > 0 {
		p.update(now)
	}
}

// Register adds the page's paths to a mux.
func (p *Page) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", p.serveHTML)
	mux.HandleFunc("GET /report.html", p.serveReport)
	mux.HandleFunc("GET /history.json", p.serveHistory)
	mux.HandleFunc("GET /events", p.serveEvents)
	webpage.Register(mux, "/")
}

// View returns what the page shows, without credentials.
func (p *Page) View() View {
	v := p.source.View()
	v.redact()
	return v
}

// historyJSON is the JSON of /history.json. The newest value of each series is the last one.
type historyJSON struct {
	IntervalSeconds int            `json:"interval_seconds"`
	Time            time.Time      `json:"time"` // of the newest values
	Series          []seriesValues `json:"series"`
	Events          []Event        `json:"events"` // the newest first
	View            View           `json:"view"`
}

type seriesValues struct {
	Series
	Values []float64 `json:"values"`
}

func (p *Page) serveHistory(w http.ResponseWriter, _ *http.Request) {
	body := historyJSON{IntervalSeconds: int(interval / time.Second), Events: p.history.newest(), View: p.View()}
	for i, s := range p.history.series {
		body.Series = append(body.Series, seriesValues{s, p.history.values(i)})
	}
	p.history.mu.Lock()
	body.Time = p.history.at
	p.history.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(body) // an error here means that the client left
}
