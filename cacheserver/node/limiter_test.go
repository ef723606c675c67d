// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
)

func TestDecodeLimiterBoundsWhatIsDecodedAtOnce(t *testing.T) {
	const cores = 3
	for name, test := range map[string]struct{ divisor, want int64 }{
		"by memory":                {divisor: 2, want: 2},
		"by cores":                 {divisor: 1000, want: cores},
		"alone, whatever it needs": {divisor: 0, want: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := NewDecodeLimiter()
			w.cores = cores
			loaded := w.load()
			each := int64(1) << 40
			if test.divisor > 0 {
				each = w.capacity / test.divisor
			}
			var mu sync.Mutex
			var now, most int64
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					defer w.begin(each)()
					mu.Lock()
					now++
					most = max(most, now)
					mu.Unlock()
					time.Sleep(time.Second) // the fake clock advances only when no other goroutine can begin
					mu.Lock()
					now--
					mu.Unlock()
				})
			}
			all.Wait()
			loaded()
			if most != test.want {
				t.Errorf("%s: %d row groups were decoded at once, want %d", name, most, test.want)
			}
			if w.used != 0 || w.running != 0 || w.loads != 0 {
				t.Errorf("%s: used %d, running %d, loads %d are left", name, w.used, w.running, w.loads)
			}
		})
	}
}

// TestRowGroupsAreDecodedOnEveryCore checks for narrow and wide tables that row groups of usual sizes are decoded on every core.
func TestRowGroupsAreDecodedOnEveryCore(t *testing.T) {
	narrow := arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64}
	for name, test := range map[string]struct {
		fields []arrow.Field
		split  source.SplitInfo
	}{
		"nine columns of small values": {[]arrow.Field{narrow, narrow, narrow, narrow, narrow, narrow, narrow, narrow, narrow}, source.SplitInfo{Rows: 524_288, Bytes: 46 << 20}},
		"lists of 512 numbers":         {[]arrow.Field{narrow, narrow}, source.SplitInfo{Rows: 16_384, Bytes: 33 << 20}},
	} {
		layout, err := rows.NewLayout(arrow.NewSchema(test.fields, nil))
		if err != nil {
			t.Fatal(err)
		}
		if one := (&load{layout: layout}).decoding(test.split); one > coreBytes {
			t.Errorf("%s: a row group takes %d bytes, more than a core's %d", name, one, coreBytes)
		}
	}
}

// TestReserveMemory checks that the memory reserved for a load covers the row groups in progress, and that it does not grow with the
// number of workers beyond what decoding may use.
func TestReserveMemory(t *testing.T) {
	layout, err := rows.NewLayout(arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}}, nil))
	if err != nil {
		t.Fatal(err)
	}
	split := iceberg.Split{Rows: 2048, Bytes: 40 << 20, Length: 40 << 20}
	for _, test := range []struct {
		limit   int64
		workers int
	}{
		{1 << 40, 16}, {700 << 20, 6}, {200 << 20, 1}, {100 << 20, 0},
	} {
		cfg := &Config{Workers: 16, Budget: rows.NewBudget(test.limit), Decoding: &DecodeLimiter{capacity: 200 << 20}}
		l := &load{layout: layout, cfg: cfg}
		l.splits = slices.Repeat([]source.Split{split}, 100)
		workers, release, err := l.reserveMemory()
		if workers != test.workers || (err == nil) != (test.workers > 0) {
			t.Errorf("limit %d: %d workers (%v), want %d", test.limit, workers, err, test.workers)
		}
		if err == nil {
			release()
		}
		if l.cfg.Budget.Used() != 0 {
			t.Errorf("limit %d: %d bytes stay reserved", test.limit, l.cfg.Budget.Used())
		}
	}
}
