// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/head/puts"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/put"
	"github.com/kubeflow/datacache/cacheserver/put/incoming"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/internal/words"
)

// putDatasets are those that clients put, and what responses about them are made from. The cluster's mu protects them.
type putDatasets struct {
	cluster *cluster
	catalog *put.Catalog
	served  map[string]*servedPut // by id
	changed chan struct{}         // closed, and replaced, when the catalog may have changed
	budget  *offheap.Budget
	counted int64 // bytes reserved for the catalog
}

// servedPut is a dataset that clients have asked for.
type servedPut struct {
	plan    *tablePlan
	filters filters
	rows    []int64 // by node
	view    *view   // nil after a change
}

// recordsPart is the divisor of the head's memory for clients that yields the part for the catalog: the rest is for requests and answers.
const recordsPart = 2

func newDatasets(c *cluster, nodes int, budget *offheap.Budget) *putDatasets {
	p := &putDatasets{cluster: c, catalog: put.New(nodes), served: map[string]*servedPut{}, changed: make(chan struct{}), budget: budget}
	p.catalog.Room = func(bytes int64) error {
		most := budget.Limit() / recordsPart
		if free := min(budget.Free(), most-p.counted); bytes > free {
			return fmt.Errorf("needed %s, and %s of %s are left", words.ExactBytes(bytes), words.ExactBytes(free), words.ExactBytes(most))
		}
		return nil
	}
	return p
}

// countLocked reserves the memory of the catalog. What data nodes tell a restarted head is kept even if there is too little memory.
func (p *putDatasets) countLocked() {
	switch more := put.Memory(p.catalog) - p.counted; {
	case more < 0:
		p.budget.ReleaseHeap(-more)
		p.counted += more
	case more > 0 && p.budget.ReserveHeap(more) == nil:
		p.counted += more
	}
}

// changedLocked sends the catalog's orders, and wakes who waits for a change.
func (p *putDatasets) changedLocked() {
	for _, o := range p.catalog.Orders() {
		if o.Message.Copy != nil {
			o.Message.Copy.Address = p.cluster.members[o.Message.Copy.To].address
		}
		if s := p.cluster.members[o.Node].session; s != nil {
			s.tell(o.Message)
		}
		if o.Message.Unput != nil {
			delete(p.served, o.Message.Unput.ID)
		}
	}
	p.countLocked()
	for _, served := range p.served {
		served.view = nil
		served.filters.wake()
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *putDatasets) expireLocked(now time.Time) []string {
	expired := p.catalog.Tick(now)
	if len(expired) > 0 {
		p.changedLocked()
	}
	return expired
}

// Change implements puts.Cluster.
func (p *putDatasets) Change(do func(*put.Catalog) error) error {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	defer p.changedLocked()
	return do(p.catalog)
}

// Look implements puts.Cluster.
func (p *putDatasets) Look(at func(*put.Catalog)) (changed <-chan struct{}) {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	at(p.catalog)
	return p.changed
}

// Nodes implements puts.Cluster.
func (p *putDatasets) Nodes() []puts.Node {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	nodes := make([]puts.Node, len(p.cluster.members))
	for i := range nodes {
		m := &p.cluster.members[i]
		nodes[i] = puts.Node{Address: m.address, Disk: m.disk, Memory: m.vitals.Memory, Puts: m.vitals.Puts, Writer: m.vitals.Writer}
	}
	return nodes
}

// Ready implements puts.Cluster.
func (p *putDatasets) Ready() error {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	_, err := p.cluster.ready()
	return err
}

// list describes the datasets that were put.
func (p *putDatasets) list() []protocol.DatasetStatus {
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

// view returns the view of a dataset that was put.
func (p *putDatasets) view(ref string) (*view, error) {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	return p.viewLocked(ref)
}

func (p *putDatasets) viewLocked(ref string) (*view, error) {
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
	layout, err := incoming.Layout(d.Schema)
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
func (p *putDatasets) filtersLocked(plan *tablePlan) *filters {
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
func (p *putDatasets) currentLocked(v *view) (*view, error) {
	if name := v.plan.dataset.Name; name != "" {
		return p.viewLocked(name + "@" + v.plan.dataset.Fingerprint)
	}
	return p.cluster.ready()
}
