// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package mutants

// mutant is one deliberate bug: a text replacement in a file of the module. The old text must occur exactly once.
type mutant struct {
	name     string
	file     string // relative to the module's root
	old, new string
}

var list = []mutant{
	{
		"the error of a file that is planned is dropped", "cacheserver/source/scan/planner.go",
		"			if perFile[i], err = p.table.splits(ctx, p.files.At(chunk*chunkFiles+i)); err != nil {\n				return err\n			}\n",
		"			perFile[i], _ = p.table.splits(ctx, p.files.At(chunk*chunkFiles+i))\n",
	},
	{
		"a share has one row too many", "cacheserver/head/answer.go",
		"min(b[1], int64(hi))}", "min(b[1], int64(hi)+1)}",
	},
	{
		"a ticket for an earlier start of the node is accepted", "cacheserver/node/node.go",
		" || ticket.Incarnation != n.incarnation {", " {",
	},
	{
		"an expired ticket is accepted", "cacheserver/protocol/ticket.go",
		"now.After(expires) {", "now.After(expires) && now.IsZero() {",
	},
	{
		"a part of the plan that all its keepers lost is not planned again", "cacheserver/head/gather.go",
		"err = h.planAgain(ctx, p, missing)", "err = errors.New(\"no data node has it\")",
	},
	{
		"a neighbour's ticket is accepted", "cacheserver/node/node.go",
		"if ticket.Node != n.cfg.Index || ticket.Incarnation != n.incarnation {", "if ticket.Node == n.cfg.Index && ticket.Incarnation != n.incarnation {",
	},
	{
		"all rows have one hash", "cacheserver/node/load/load.go",
		"Hash: sealed.Hash[:],", "Hash: make([]byte, len(sealed.Hash)),",
	},
	{
		"an abort is lost", "cacheserver/head/cluster.go",
		"	return peer.ToNode{Abort: abort}", "	_ = abort\n	return peer.ToNode{}",
	},
	{
		"a plan that nodes hold is made anew, under another snapshot", "cacheserver/head/dataset.go",
		"held.Request != d.request || originOf(held) <= d.origin {", "held.Request == d.request || originOf(held) <= d.origin {",
	},
	{
		"a take answers with a neighbour's row", "cacheserver/node/serve/flight.go",
		"rows.Run{First: uint64(row - l.Ticket.Bounds[0]), Rows: 1}", "rows.Run{First: uint64(max(row-l.Ticket.Bounds[0]-1, 0)), Rows: 1}",
	},
	{
		"an epoch that goes on skips a step", "cacheserver/head/answer.go",
		"	return a.spread(protocol.Ticket{Kind: protocol.Epoch, Epoch: e, Share: r.Share})\n",
		"	if r.Share.StartStep > 0 {\n		r.Share.StartStep++\n	}\n	return a.spread(protocol.Ticket{Kind: protocol.Epoch, Epoch: e, Share: r.Share})\n",
	},
	{
		"an epoch lacks its last row", "cacheserver/node/serve/epoch.go",
		"|| flush && rows > 0 {", "|| flush && rows > 1 {",
	},
	{
		"a short read is swallowed", "cacheserver/objstore/object.go",
		"			return done, fmt.Errorf(\"the answer ended after %d of %d bytes: %w\", done, len(buf), err)\n", "			return len(buf), nil\n",
	},
	{
		"position deletes are skipped", "cacheserver/source/iceberg/deletes.go",
		"if len(d.deletes.position)+len(d.deletes.vectors) == 0 {", "if len(d.deletes.vectors) == 0 {",
	},
	{
		"an equality delete file is skipped", "cacheserver/source/iceberg/equality.go",
		"		e.sets = append(e.sets, set)\n", "		if len(e.sets) == 0 {\n			e.sets = append(e.sets, set)\n		}\n",
	},
	{
		"the budget is released twice", "cacheserver/node/load/limiter.go",
		"a.budget.Release(a.need.working())", "a.budget.Release(2 * a.need.working())",
	},
	{
		"a call never gives its rows back", "cacheserver/node/assignment.go",
		"		rows.Release()\n		calls.Done()\n", "		calls.Done()\n",
	},
	{
		"a lost node is not noticed", "cacheserver/head/state.go",
		"	case m.session == nil:\n		return protocol.NodeLost\n", "",
	},
	{
		"a silent node is not noticed", "cacheserver/head/cluster.go",
		"m.session != nil && now.Sub(m.seen) > c.silence {", "m.session != nil && m.seen.IsZero() {",
	},
	{
		"a node gives up at the store's first trouble", "cacheserver/node/load/load.go",
		"	if may == source.Soon {", "	if may == source.Soon && l.spec.Ready {",
	},
	{
		"any secret is accepted", "cacheserver/protocol/peer/handshake.go",
		"return text, hmac.Equal(a.next(text), message[:macSize])", "return text, len(a.next(text)) == macSize",
	},
	{
		"files are ordered by name alone", "cacheserver/source/iceberg/plan.go",
		"cmp.Or(cmp.Compare(d.sequence, other.sequence), strings.Compare(", "cmp.Or(strings.Compare(",
	},
	{
		"rows of two chunks are read as if they were of one", "cacheserver/rows/gather.go",
		"row == after && start > 0 {", "row == after {",
	},
	{
		"a node that joins again reports nothing", "cacheserver/node/join.go",
		"r.of, r.reported, r.concluded, r.opened = a, 0, false, &opened{}",
		"r.of, r.reported, r.concluded, r.opened = a, 0, a != nil && a.loaded() != nil, &opened{}",
	},
}
