// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reading shows who reads from a cache, how fast, and who waits for whom, on the pages of heads and data nodes.
package reading

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/internal/watch"
	"github.com/kubeflow/datacache/internal/words"
)

// Series describes the numbers that Values returns, in the same order.
func Series() []watch.Series {
	return []watch.Series{
		{Name: "rows", Chart: "Rows read a second", Unit: watch.Count, Rate: true},
		{Name: "bytes", Chart: "Bytes read a second", Unit: watch.Bytes, Rate: true},
		{Name: "blocked on clients", Chart: "Streams: what they wait for", Unit: watch.Count, Rate: true},
		{Name: "data nodes at work", Chart: "Streams: what they wait for", Unit: watch.Count, Rate: true},
		{Name: "open streams", Chart: "Streams: what they wait for", Unit: watch.Count, Limit: true},
	}
}

// Values returns one number for each of Series.
func Values(t protocol.Traffic) []float64 {
	return []float64{float64(t.Rows), float64(t.Bytes), float64(t.ClientMS) / 1000, float64(t.NodeMS) / 1000, float64(t.Streams)}
}

// Readers keeps the rates of readers. The zero value is ready to use; it is safe for concurrent use.
type Readers struct {
	mu    sync.Mutex
	rates watch.Rates
	list  []protocol.Reader
}

func keyOf(r protocol.Reader) string {
	return fmt.Sprintf("%s %s %s %d/%d", r.Job, r.Client, r.Kind, r.Rank, r.World)
}

// Update replaces the readers by those of time now and updates their rates. A reader of several data nodes may be listed once for each.
func (r *Readers) Update(now time.Time, all []protocol.Reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(all) == 0 && len(r.list) == 0 {
		return
	}
	r.list = Merge(all)
	for _, x := range r.list {
		r.rates.Add(now, keyOf(x), float64(x.Rows), float64(x.Bytes), float64(x.ClientMS)/1000, float64(x.NodeMS)/1000)
	}
	r.rates.Forget(now)
}

// Merge returns one entry for each reader, with the sums over its data nodes, sorted by bytes, the largest first.
func Merge(all []protocol.Reader) []protocol.Reader {
	at := make(map[string]int, len(all))
	merged := make([]protocol.Reader, 0, len(all))
	for _, x := range all {
		i, known := at[keyOf(x)]
		if !known {
			at[keyOf(x)] = len(merged)
			merged = append(merged, x)
			continue
		}
		merged[i].Add(x.Traffic)
	}
	slices.SortStableFunc(merged, func(a, b protocol.Reader) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return merged
}

// Table lists the readers, those with open streams first.
func (r *Readers) Table() watch.Table {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := watch.Table{
		ID: "readers", Title: "Who reads", Empty: "Nobody reads now, or did in the last minute.",
		Note: "Blocked: the part of a stream's time in which a message waited for the client to read it. " +
			"At work: the part in which the data node made the next one.",
		Head: []string{"Job", "Rank", "Client", "Kind", "Streams", "Rows/s", "Bytes/s", "Rows", "Bytes", "Blocked", "At work", "Who waits"},
	}
	list := slices.Clone(r.list)
	slices.SortStableFunc(list, func(a, b protocol.Reader) int {
		return cmp.Or(cmp.Compare(min(b.Streams, 1), min(a.Streams, 1)), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Rank, b.Rank))
	})
	for _, x := range list[:min(len(list), protocol.MaxReaders)] {
		t.Rows = append(t.Rows, r.row(x))
	}
	if more := len(list) - protocol.MaxReaders; more > 0 {
		t.Note += fmt.Sprintf(" %d more readers are not listed.", more)
	}
	return t
}

func (r *Readers) row(x protocol.Reader) []watch.Cell {
	rank := "–"
	if x.World > 0 {
		rank = fmt.Sprintf("%d of %d", x.Rank, x.World)
	}
	rates := r.rates.Of(keyOf(x))
	streams := float64(max(x.Streams, 1))
	blocked, work := min(rates[2]/streams, 1), min(rates[3]/streams, 1)
	return []watch.Cell{
		watch.Text(cmp.Or(x.Job, "–")), watch.Text(rank), watch.Text(x.Client), watch.Text(string(x.Kind)), watch.Number(strconv.Itoa(x.Streams)),
		watch.Number(words.Count(rates[0])), watch.Number(words.Bytes(rates[1])),
		watch.Number(words.Count(float64(x.Rows))), watch.Number(words.Bytes(float64(x.Bytes))),
		{Text: words.Ratio(blocked), Number: true, Bar: &watch.Bar{Value: blocked, Max: 1}},
		{Text: words.Ratio(work), Number: true, Bar: &watch.Bar{Value: work, Max: 1}},
		watch.Text(words.WhoWaits(x.Streams, rates[0], blocked, work)),
	}
}

// Loading returns a cell with the number of loaded splits and a strip that marks them; done reports whether split i is loaded.
func Loading(count, total int, done func(i int) bool) watch.Cell {
	c := watch.Number(fmt.Sprintf("%d of %d", count, total))
	if total > 0 {
		c.Strip = strip(total, done)
	}
	return c
}

// maxPieces is the maximum number of parts of a strip.
const maxPieces = 100

// strip divides the splits, in order, into at most maxPieces parts and returns those with loaded splits: Good if all are, else Busy.
func strip(total int, done func(i int) bool) []watch.Piece {
	n := min(total, maxPieces)
	var pieces []watch.Piece
	for p := range n {
		first, end := p*total/n, (p+1)*total/n
		count := 0
		for i := first; i < end; i++ {
			if done(i) {
				count++
			}
		}
		if count == 0 {
			continue
		}
		piece := watch.Piece{From: float64(p) / float64(n), To: float64(p+1) / float64(n), Tone: watch.Busy}
		if count == end-first {
			piece.Tone = watch.Good
		}
		if last := len(pieces) - 1; last >= 0 && pieces[last].Tone == piece.Tone && pieces[last].To == piece.From {
			pieces[last].To = piece.To
			continue
		}
		pieces = append(pieces, piece)
	}
	return pieces
}
