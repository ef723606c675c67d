// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// walk yields the runs of a stream's rows, numbered within the node, like epoch.Cursor.
type walk interface {
	Next(runs []rows.Run, positions uint64) (n int, passed uint64)
}

// walk returns the walk over the node's rows of a ticket.
func (l Lent) walk() (walk, error) {
	cursor, err := l.Ticket.Cursor()
	if err != nil {
		return nil, err
	}
	cursor.Within(uint64(l.Ticket.Bounds[0]), uint64(l.Ticket.Bounds[1]))
	if l.Index == nil {
		return cursor, nil
	}
	return &picked{cursor: cursor, index: l.Index}, nil
}

// picked is the walk over the rows that a filter selects: it maps the filtered rows of a cursor to rows of the node.
type picked struct {
	cursor   *epoch.Cursor
	index    *pick.Index
	filtered [blockRuns]rows.Run
	singles  [blockRuns]uint64
}

// Next implements walk. It advances by at most len(runs) positions, so every row has room for a run of its own.
func (p *picked) Next(runs []rows.Run, positions uint64) (n int, passed uint64) {
	most := min(len(runs), blockRuns)
	found, passed := p.cursor.Next(p.filtered[:most], min(positions, uint64(most)))
	for filtered := p.filtered[:found]; len(filtered) > 0; {
		single := 0
		for single < len(filtered) && filtered[single].Rows == 1 {
			p.singles[single] = filtered[single].First
			single++
		}
		p.index.Select(p.singles[:single])
		for _, row := range p.singles[:single] {
			runs[n] = rows.Run{First: row, Rows: 1}
			n++
		}
		if filtered = filtered[single:]; len(filtered) > 0 {
			n += p.expand(runs[n:], filtered[0])
			filtered = filtered[1:]
		}
	}
	return n, passed
}

// expand stores the runs of consecutive filtered rows.
func (p *picked) expand(runs []rows.Run, filtered rows.Run) (n int) {
	for filtered.Rows > 0 {
		found, rows := p.index.Runs(runs[n:], filtered.First, filtered.Rows)
		n, filtered.First, filtered.Rows = n+found, filtered.First+rows, filtered.Rows-rows
	}
	return n
}
