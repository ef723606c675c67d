// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"bytes"
	"encoding/json"
	"math/bits"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// share is the part of a response that one data node contributes.
type share struct {
	node   int
	rows   int64 // used to estimate bytes
	ticket protocol.Ticket
}

// answer is the content of a FlightInfo before it is encoded.
type answer struct {
	view    *view
	request protocol.Request
	columns []int
	narrow  string // the shortest types of the columns' integers, see rows.Codes; empty if those are the table's
	records int64
	shares  []share
}

// answer determines which rows of which nodes a request gets.
func (v *view) answer(r protocol.Request) (answer, error) {
	columns, err := v.plan.columns(r.Columns)
	if err != nil {
		return answer{}, status.Error(codes.InvalidArgument, err.Error())
	}
	a := answer{view: v, columns: columns, narrow: v.narrowOf(columns), request: r}
	switch r.Kind {
	case protocol.Shard:
		err = a.shard(r)
	case protocol.Epoch:
		err = a.epoch(r)
	case protocol.Take:
		a.take()
	case protocol.Mix:
		if rows := r.Mix.Parts[r.Mix.Part].Rows; rows != uint64(v.rows) {
			return answer{}, status.Errorf(codes.FailedPrecondition, "command: parts[%d].rows = %d: this cache has %d rows; ask another cache for this part, or make the mixture anew", r.Mix.Part, rows, v.rows)
		}
		err = a.mix(r)
	}
	if err != nil {
		return answer{}, status.Error(codes.InvalidArgument, err.Error())
	}
	return a, nil
}

func (a *answer) shard(r protocol.Request) error {
	lo, hi := epoch.Shard(r.Index, r.Total, uint64(a.view.rows))
	a.records = int64(hi - lo)
	if r.Split != nil {
		return a.spread(protocol.Ticket{Kind: protocol.Shard, Rows: assign.Bounds{int64(lo), int64(hi)}})
	}
	m := newMarks(a.view.places.bounds)
	m.add(int64(lo), int64(hi))
	for _, i := range m.nodes() {
		b := m.bounds[i]
		rows := assign.Bounds{max(b[0], int64(lo)), min(b[1], int64(hi))}
		a.add(i, rows.Len(), protocol.Ticket{Kind: protocol.Shard, Rows: rows})
	}
	return nil
}

// spread adds the nodes that hold rows of a ticket of kind Shard or Epoch, whose rows are spread over them.
func (a *answer) spread(ticket protocol.Ticket) error {
	if a.records == 0 {
		return nil
	}
	ticket = a.within(ticket)
	nodes, err := holders(ticket, a.view.places.bounds)
	if err == nil {
		a.deal(nodes, ticket)
	}
	return err
}

// deal adds the nodes that hold rows of a ticket.
func (a *answer) deal(nodes []int, ticket protocol.Ticket) {
	for _, i := range nodes {
		a.add(i, scale(a.records, a.view.places.bounds[i].Len(), a.view.filtered), ticket)
	}
}

// within returns a ticket for the view's selection.
func (a *answer) within(t protocol.Ticket) protocol.Ticket {
	if s := a.view.selection; s != nil {
		t.Filter = s.filter
		if s.Split != nil {
			t.Split, t.Filtered = s.Split, a.view.filtered
		}
	}
	return t
}

func (a *answer) epoch(r protocol.Request) error {
	e := r.Epoch
	e.Rows = uint64(a.view.rows)
	a.records = int64(min(e.Count(r.Share), 1<<62))
	return a.spread(protocol.Ticket{Kind: protocol.Epoch, Epoch: e, Share: r.Share})
}

// mix answers with the rows of a part. If the share has more positions than it examines, records is an estimate.
func (a *answer) mix(r protocol.Request) error {
	ticket := a.within(protocol.Ticket{Kind: protocol.Mix, Epoch: r.Epoch, Share: r.Share, Mix: r.Mix})
	nodes, rows, err := mixHolders(ticket, a.view.places.bounds)
	if err != nil {
		return err
	}
	a.records = int64(min(rows, 1<<62))
	a.deal(nodes, ticket)
	return nil
}

func (a *answer) take() {
	a.records = a.view.rows
	for i, b := range a.view.places.bounds {
		a.add(i, b.Len(), protocol.Ticket{Kind: protocol.Take})
	}
}

func (a *answer) add(node int, rows int64, t protocol.Ticket) {
	t = a.within(t)
	t.Node, t.Bounds, t.Columns = node, a.view.places.bounds[node], a.columns
	t.Early = a.view.loaded != nil
	if a.request.Narrow {
		t.Narrow = a.narrow
	}
	t.Job, t.Claimed, t.Reader = a.request.Job, a.request.Claimed, a.request.Reader
	t.Dataset, t.Incarnation = a.view.key, a.view.nodes[node].incarnation
	a.shares = append(a.shares, share{node: node, rows: rows, ticket: t})
}

// narrowOf returns the shortest types of the integers of some columns, nil means all; "" if they are the table's.
func (v *view) narrowOf(columns []int) string {
	types := []byte(v.narrow)
	if columns != nil {
		types = make([]byte, len(columns))
		for i, c := range columns {
			types[i] = rows.Declared
			if c < len(v.narrow) {
				types[i] = v.narrow[c]
			}
		}
	}
	if len(bytes.Trim(types, string(rows.Declared))) == 0 {
		return ""
	}
	return string(types)
}

// bytes estimates the Arrow body bytes of the response, in the table's types, from each node's mean row size.
func (a *answer) bytes() int64 {
	var total int64
	for _, s := range a.shares {
		node := &a.view.nodes[s.node]
		columns := node.bytes
		if a.columns != nil {
			columns = 0
		}
		for _, c := range a.columns {
			if c < len(node.columnBytes) {
				columns += node.columnBytes[c]
			} else { // lengths
				columns += 4 * node.rows
			}
		}
		total += scale(s.rows, columns, node.rows)
	}
	return total
}

// scale is a * b / c with a 128-bit product; 0 if c is 0.
func scale(a, b, c int64) int64 {
	if c == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return 1<<63 - 1
	}
	quotient, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(quotient, 1<<63-1))
}

// info encodes the response. Tickets are valid for ttl from now.
func (a *answer) info(d *flight.FlightDescriptor, seal protocol.Sealer, scheme string, now time.Time, ttl time.Duration) (*flight.FlightInfo, error) {
	about := protocol.InfoMetadata{V: protocol.Version, Dataset: a.view.plan.dataset, Rows: a.view.rows, Loaded: a.view.loaded}
	if a.request.Kind == protocol.Take {
		about.Narrow, about.Swept = a.narrow != "", a.view.swept
	}
	if s := a.view.selection; s != nil {
		about.Dataset.Fingerprint, about.Filtered, about.Selection = s.fingerprint, &a.view.filtered, &s.Selection
	}
	metadata, err := about.Encode(a.view.places.json)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encode metadata: %v", err)
	}
	info := &flight.FlightInfo{
		Schema:           a.view.plan.schemaBytes(a.columns),
		FlightDescriptor: d,
		TotalRecords:     a.records,
		TotalBytes:       a.bytes(),
		Ordered:          true,
		AppMetadata:      metadata,
	}
	for _, s := range a.shares {
		s.ticket.Expires = now.Add(ttl).Unix()
		endpoint, err := a.endpoint(s, seal, scheme)
		if err != nil {
			return nil, err
		}
		info.Endpoint = append(info.Endpoint, endpoint)
	}
	return info, nil
}

func (a *answer) endpoint(s share, seal protocol.Sealer, scheme string) (*flight.FlightEndpoint, error) {
	ticket, err := seal.Seal(s.ticket)
	if err != nil {
		return nil, err
	}
	metadata, err := json.Marshal(protocol.EndpointMetadata{Node: s.node})
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encode metadata: %v", err)
	}
	return &flight.FlightEndpoint{
		Ticket:      &flight.Ticket{Ticket: ticket},
		Location:    []*flight.Location{{Uri: scheme + "://" + a.view.nodes[s.node].address}},
		AppMetadata: metadata,
	}, nil
}
