// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/internal/opshttp"
	"github.com/kubeflow/datacache/internal/watch"
	"github.com/kubeflow/datacache/internal/words"
	"github.com/kubeflow/datacache/objectcache/store"
)

// ServeOps serves probes, metrics and the page on the listener until ctx ends. It closes the listener.
func (s *Server) ServeOps(ctx context.Context, on net.Listener) error {
	page := watch.New(pageSource{s})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return opshttp.Serve(ctx, on, opshttp.Handler(s, s.metrics.handler(), page))
	})
	group.Go(func() error { page.Run(ctx); return nil })
	return group.Wait()
}

// pageSource is the watch.Source of the page of the object cache.
type pageSource struct{ server *Server }

var _ watch.Source = pageSource{}

// Series implements watch.Source.
func (pageSource) Series() []watch.Series {
	return []watch.Series{
		{Name: "found", Chart: "Reads a second", Unit: watch.Count, Rate: true},
		{Name: "not here", Chart: "Reads a second", Unit: watch.Count, Rate: true},
		{Name: "sent", Chart: "Bytes of objects a second", Unit: watch.Bytes, Rate: true},
		{Name: "received", Chart: "Bytes of objects a second", Unit: watch.Bytes, Rate: true},
		{Name: "sent on", Chart: "Requests to other nodes a second", Unit: watch.Count, Rate: true},
		{Name: "not answered", Chart: "Requests to other nodes a second", Unit: watch.Count, Rate: true},
		{Name: "objects", Chart: "Disk", Unit: watch.Bytes},
		{Name: "quotas", Chart: "Disk", Unit: watch.Bytes, Limit: true},
		{Name: "members", Chart: "Object caches that share the keys", Unit: watch.Count},
	}
}

// Sample implements watch.Source.
func (l pageSource) Sample() watch.Sample {
	s, t := l.server, &l.server.traffic
	used, quota := usage(s.cfg.Store.Stats())
	total, failures := t.total(), t.forwards.failed.Load()+t.forwards.spared.Load()
	values := []int64{
		total.hits.Load(), total.misses.Load(), total.sent.Load(), total.received.Load(), t.forwards.answered.Load() + failures, failures,
		used, quota, int64(s.cfg.Router.Members()),
	}
	sample := watch.Sample{Values: make([]float64, len(values))}
	for i, v := range values {
		sample.Values[i] = float64(v)
	}
	state, reason, tone := l.state()
	sample.States = []watch.State{{Who: "object cache", Is: state, Reason: reason, Tone: tone}}
	return sample
}

func usage(buckets []store.BucketStats) (used, quota int64) {
	for _, b := range buckets {
		used, quota = used+b.Bytes, quota+b.Quota
	}
	return used, quota
}

func (l pageSource) state() (state, reason string, tone watch.Tone) {
	ready, reason := l.server.Ready()
	switch {
	case !ready:
		return "Waiting", reason, watch.Busy
	case l.server.cfg.BucketsRejected():
		return "Ready", "ready, but the newest buckets file is invalid: an older one is in force", watch.Warn
	case l.server.Membership.absent.Load() != nil:
		return "Absent", "not among the object caches that share the keys", watch.Warn
	case l.server.Membership.doubt.Load() != nil:
		return "Ready", "ready, but objects of before its absence are misses until all others have said what they changed", watch.Warn
	}
	return "Ready", reason, watch.Good
}

// View implements watch.Source.
func (l pageSource) View() watch.View {
	s := l.server
	buckets := s.cfg.Store.Stats()
	used, _ := usage(buckets)
	v := watch.View{Role: "object cache", Name: s.cfg.Router.Self(), Waits: l.waits()}
	v.State, v.Reason, v.Tone = l.state()
	v.Tables = []watch.Table{l.buckets(buckets)}
	if total := s.cfg.Buckets().TotalLimit; total > 0 {
		v.Meters = append(v.Meters, watch.Meter{Name: "disk, all buckets", Used: used, Limit: total})
	}
	if limit := s.cfg.Memory.Limit(); limit > 0 {
		v.Meters = append(v.Meters, watch.Meter{Name: "memory of requests", Used: s.cfg.Memory.Used(), Limit: limit})
	}
	_, found := s.traffic.total().reads()
	v.Facts = []watch.Fact{
		{Name: "Object caches that share the keys", Value: strconv.Itoa(s.cfg.Router.Members())},
		{Name: "Reads that found their object", Value: words.Ratio(found)},
		{Name: "Operations that the disk refused", Value: strconv.FormatInt(s.cfg.Store.Failures(), 10)},
	}
	return v
}

func (l pageSource) waits() []watch.Wait {
	var waits []watch.Wait
	if ok, reason := l.server.Ready(); !ok {
		waits = append(waits, watch.Wait{For: reason, Fix: "It ends by itself. Requests get 503 until then, and clients read from the source."})
	}
	if l.server.cfg.BucketsRejected() {
		waits = append(waits, watch.Wait{For: "the newest buckets file is invalid", Fix: "The log names the place. Correct it: the file is read again every 2 s."})
	}
	if l.server.Membership.absent.Load() != nil {
		waits = append(waits, watch.Wait{For: "this node is not among the ready endpoints of the Service", Fix: "Look at its pod's readiness: kubectl describe pod."})
	}
	if l.server.Membership.doubt.Load() != nil {
		waits = append(waits, watch.Wait{For: "another object cache to say what it changed", Fix: "It ends when all others answer, or are no longer among the ready endpoints of the Service."})
	}
	return waits
}

// foundCell is a cell with the part of reads that found their object.
func foundCell(reads int64, found float64) watch.Cell {
	if reads == 0 {
		return watch.Number("–")
	}
	return watch.Cell{Text: words.Ratio(found), Number: true, Bar: &watch.Bar{Value: found, Max: 1}}
}

// buckets lists the buckets, those with the most bytes first.
func (l pageSource) buckets(all []store.BucketStats) watch.Table {
	t := watch.Table{
		ID: "buckets", Title: "Buckets", Empty: "The buckets file names none.",
		Note: "Found: the part of reads whose object was here, since the start. Mirrors read documents and blocks of 8 MiB, and receive them from upstream.",
		Head: []string{"Bucket", "Objects", "Bytes", "Quota", "Reads", "Found", "Sent", "Received", "Evicted", "Damaged"},
	}
	slices.SortFunc(all, func(a, b store.BucketStats) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Bucket, b.Bucket))
	})
	for _, b := range all {
		c := l.server.traffic.bucket(b.Bucket)
		reads, found := c.reads()
		t.Rows = append(t.Rows, []watch.Cell{
			watch.Text(b.Bucket), watch.Number(words.Count(float64(b.Objects))),
			{Text: words.Bytes(float64(b.Bytes)), Number: true, Bar: &watch.Bar{Value: float64(b.Bytes), Max: float64(b.Quota)}},
			watch.Number(words.Bytes(float64(b.Quota))), watch.Number(words.Count(float64(reads))),
			foundCell(reads, found),
			watch.Number(words.Bytes(float64(c.sent.Load()))), watch.Number(words.Bytes(float64(c.received.Load()))),
			watch.Number(words.Count(float64(b.Evicted))), watch.Number(words.Count(float64(b.Damaged))),
		})
	}
	return t
}
