// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/exchange"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/put"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// puts are the datasets that clients put, and what responses about them are made from. The cluster's mu protects them.
type puts struct {
	cluster *cluster
	catalog *put.Catalog
	served  map[string]*servedPut // by id
	changed chan struct{}         // closed, and replaced, when the catalog may have changed
}

// servedPut is a dataset that clients have asked for.
type servedPut struct {
	plan    *tablePlan
	filters filters
	rows    []int64 // by node
	view    *view   // nil after a change
}

func newPuts(c *cluster, nodes int) *puts {
	return &puts{cluster: c, catalog: put.New(nodes), served: map[string]*servedPut{}, changed: make(chan struct{})}
}

// putsChangedLocked sends the catalog's orders, and wakes who waits for a change.
func (p *puts) changedLocked() {
	for _, o := range p.catalog.Orders() {
		if s := p.cluster.members[o.Node].session; s != nil {
			s.tell(o.Message)
		}
		if o.Message.Unput != nil {
			delete(p.served, o.Message.Unput.ID)
		}
	}
	for _, served := range p.served {
		served.view = nil
		served.filters.wake()
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *puts) expireLocked(now time.Time) []string {
	expired := p.catalog.Tick(now)
	if len(expired) > 0 {
		p.changedLocked()
	}
	return expired
}

// change runs a function that changes the catalog, and sends what it orders.
func (p *puts) change(do func(*put.Catalog) error) error {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	defer p.changedLocked()
	return do(p.catalog)
}

// datasets describes the datasets that were put.
func (p *puts) list() []protocol.DatasetStatus {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	return p.catalog.List()
}

// view returns the view of a dataset, "" is the table, which may be early.
func (s *service) view(dataset string, early bool) (*view, error) {
	if dataset != "" {
		return s.cluster.puts.view(dataset)
	}
	if _, none := s.cfg.Source.(source.None); none {
		return nil, status.Errorf(codes.InvalidArgument, "dataset: missing, and this cache has no table: name one of the datasets that were put, which ListFlights lists")
	}
	return s.cluster.view(early)
}

// put returns the view of a dataset that was put.
func (p *puts) view(ref string) (*view, error) {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	return p.viewLocked(ref)
}

func (p *puts) viewLocked(ref string) (*view, error) {
	d, err := p.catalog.Find(ref)
	if err != nil {
		return nil, err
	}
	served := p.served[d.ID]
	if served == nil {
		if served, err = serveDataset(d); err != nil {
			return nil, err
		}
		p.served[d.ID] = served
	}
	if served.view != nil {
		return served.view, nil
	}
	v := &view{plan: served.plan, key: d.ID, rows: d.Rows, filtered: d.Rows, nodes: make([]server, len(d.Nodes))}
	fits := make([][]byte, len(d.Nodes))
	for i, held := range d.Nodes {
		m := &p.cluster.members[i]
		v.nodes[i] = server{address: m.address, incarnation: m.incarnation, rows: held.NodeRows, columnBytes: held.ColumnBytes}
		for _, b := range held.ColumnBytes {
			v.nodes[i].bytes += b
		}
		fits[i] = held.Fits
	}
	v.narrow = rows.Codes(v.plan.Schema, fits...)
	if v.places, err = newPlaces(served.rows); err == nil {
		served.view = v
	}
	return v, err
}

func serveDataset(d *put.Dataset) (*servedPut, error) {
	layout, err := layoutOf(d.Schema)
	if err != nil {
		return nil, err
	}
	counts := make([]int64, len(d.Nodes))
	for i := range counts {
		counts[i] = d.Nodes[i].NodeRows
	}
	return &servedPut{rows: counts, filters: newFilters(), plan: &tablePlan{
		Plan: source.Plan{Schema: layout.Schema()}, fingerprint: d.ID,
		dataset: protocol.Dataset{Fingerprint: d.Fingerprint, Name: d.Name},
	}}, nil
}

// filtersLocked returns the filters of a plan. Those of a dataset that is not there any more are empty.
func (p *puts) filtersLocked(plan *tablePlan) *filters {
	if served := p.served[plan.fingerprint]; served != nil {
		return &served.filters
	}
	if plan.dataset.Name != "" {
		none := newFilters()
		return &none
	}
	return &p.cluster.filters
}

// currentLocked returns the current view of what v is a view of.
func (p *puts) currentLocked(v *view) (*view, error) {
	if name := v.plan.dataset.Name; name != "" {
		return p.viewLocked(name + "@" + v.plan.dataset.Fingerprint)
	}
	return p.cluster.ready()
}

// layoutOf returns the layout of the rows of a foreign schema, an Arrow IPC message.
func layoutOf(schema []byte) (*rows.Layout, error) {
	if err := exchange.CheckSchema(exchange.Message{Header: schema}); err != nil {
		return nil, err
	}
	parsed, err := rows.ParseSchema(schema)
	if err != nil {
		return nil, err
	}
	return rows.NewLayout(parsed)
}

// newPut checks a request to begin a put.
func newPut(b protocol.Begin, nodes int) (of peer.Put, err error) {
	of = peer.Put{Name: b.Name, Mode: b.Mode, Parts: b.Parts, Nodes: nodes, Schema: bytes.TrimPrefix(b.Schema, []byte{0xff, 0xff, 0xff, 0xff}), Keep: b.Keep, Recipe: b.Recipe, Source: b.Source, TTL: b.TTL}
	if len(of.Schema) < len(b.Schema) && len(of.Schema) >= 4 { // with the prefix of a stream
		of.Schema = of.Schema[4:]
	}
	switch err := protocol.ValidDataset(b.Name); {
	case err != nil:
		return of, fmt.Errorf("name: %w", err)
	case b.Mode == "":
		of.Mode = protocol.PutCreate
	case b.Mode != protocol.PutCreate && b.Mode != protocol.PutReplace:
		return of, fmt.Errorf("mode: %.64q, want %q or %q", b.Mode, protocol.PutCreate, protocol.PutReplace)
	}
	switch {
	case b.Parts < 1 || b.Parts > protocol.MostParts:
		return of, fmt.Errorf("parts: %d, want 1 to %d", b.Parts, protocol.MostParts)
	case b.Bytes < 0 || b.TTL < 0:
		return of, fmt.Errorf("bytes, ttl_s: %d and %d, want 0 or more", b.Bytes, b.TTL)
	case b.Keep != "" && b.Keep != protocol.KeepMemory && b.Keep != protocol.KeepDisk:
		return of, fmt.Errorf("keep: %.64q, want %q or %q", b.Keep, protocol.KeepMemory, protocol.KeepDisk)
	case len(b.Recipe) > mostLabel || len(b.Source) > mostLabel:
		return of, fmt.Errorf("recipe, source: %d and %d bytes, want at most %d", len(b.Recipe), len(b.Source), mostLabel)
	}
	layout, err := layoutOf(of.Schema)
	if err != nil {
		return of, fmt.Errorf("schema: %w", err)
	}
	if layout.Schema().NumFields() == 0 {
		return of, fmt.Errorf("schema: it has no columns")
	}
	seen := map[string]bool{}
	for _, f := range layout.Schema().Fields() {
		if seen[f.Name] {
			return of, fmt.Errorf("schema: column %.64q is there twice", f.Name)
		}
		seen[f.Name] = true
		of.Columns = append(of.Columns, [3]string{f.Name, f.Type.String(), strconv.FormatBool(f.Nullable)})
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	of.ID = putPrefix + hex.EncodeToString(id)
	return of, nil
}

const (
	// putPrefix distinguishes the id of a put from the fingerprint of a table.
	putPrefix = "put-"
	// mostLabel is the maximum length of a recipe and of a source.
	mostLabel = 256
)
