// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

func TestLimiterBoundsWhatIsDecodedAtOnce(t *testing.T) {
	const cores = 3
	for name, test := range map[string]struct{ divisor, want int64 }{
		"by memory":                {divisor: 2, want: 2},
		"by cores":                 {divisor: 1000, want: cores},
		"alone, whatever it needs": {divisor: 0, want: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := NewLimiter()
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
					time.Sleep(time.Second) //nolint:forbidigo // the clock of synctest
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
		split  source.Split
	}{
		"nine columns of small values": {[]arrow.Field{narrow, narrow, narrow, narrow, narrow, narrow, narrow, narrow, narrow}, source.Split{Rows: 524_288, Bytes: 46 << 20}},
		"lists of 512 numbers":         {[]arrow.Field{narrow, narrow}, source.Split{Rows: 16_384, Bytes: 33 << 20}},
	} {
		layout, err := rows.NewLayout(arrow.NewSchema(test.fields, nil))
		if err != nil {
			t.Fatal(err)
		}
		if pages, batches := (&load{layout: layout}).decoding(test.split); pages+batches > coreBytes {
			t.Errorf("%s: a row group takes %d bytes, more than a core's %d", name, pages+batches, coreBytes)
		}
	}
}

// TestAdmissionsKeepRoomForRows checks that splits are admitted as long as there is room for loading them and for the rows of all that are
// admitted.
func TestAdmissionsKeepRoomForRows(t *testing.T) {
	for name, test := range map[string]struct {
		limit, rows, built int64
		guessed            bool
		want               int
	}{
		"as many as there are":           {limit: 1 << 20, rows: 60, want: 10},
		"as many as there is room for":   {limit: 450, rows: 60, want: 4},
		"rows in the budget count once":  {limit: 450, rows: 60, built: 60, want: 4},
		"the only one, without estimate": {limit: 50, rows: 60, want: 1},
		"two, before estimates are good": {limit: 1 << 20, rows: 60, guessed: true, want: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, budget := NewLimiter(), offheap.NewBudget(test.limit)
			ctx, stop := context.WithCancel(t.Context())
			var admissions sync.Map
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					a, err := w.admit(ctx, budget, func() need { return need{compressed: 30, decoding: 20, rows: test.rows, guessed: test.guessed} })
					if err != nil {
						return
					}
					admissions.Store(a, true)
					if test.built > 0 && budget.Reserve(test.built) == nil {
						a.built(test.built, test.rows)
					}
				})
				synctest.Wait()
			}
			stop()
			all.Wait()
			got := 0
			for a := range admissions.Range {
				got++
				a.(*admission).end()
			}
			if got != test.want {
				t.Errorf("%s: %d were admitted, want %d", name, got, test.want)
			}
			if w.admitted != 0 || w.expected != 0 || w.decoding != 0 || budget.Used() != int64(got)*test.built {
				t.Errorf("%s: %d admitted, %d bytes expected, %d for decoding, %d reserved are left", name, w.admitted, w.expected, w.decoding, budget.Used())
			}
		})
	}
}

// TestRoomForPages checks that pages that take more memory than was estimated reserve it in the budget, and no more than that.
func TestRoomForPages(t *testing.T) {
	w, budget := NewLimiter(), offheap.NewBudget(1000)
	a, err := w.admit(t.Context(), budget, func() need { return need{compressed: 100, decoding: 80, pages: 50} })
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		bytes, used int64
		fails       bool
	}{{50, 180, false}, {1, 181, false}, {819, 1000, false}, {1, 1000, true}, {-820, 180, false}, {-50, 180, false}, {60, 190, false}} {
		err := a.room(step.bytes)
		var full *offheap.ExhaustedError
		if budget.Used() != step.used || errors.As(err, &full) != step.fails {
			t.Errorf("%d more bytes of pages: %d bytes are reserved, error %v, want %d", step.bytes, budget.Used(), err, step.used)
		}
	}
	if w.decoding != 90 {
		t.Errorf("%d bytes for decoding, want 90", w.decoding)
	}
	a.end()
	if budget.Used() != 0 || w.decoding != 0 {
		t.Errorf("%d bytes reserved and %d for decoding are left", budget.Used(), w.decoding)
	}
}

// TestRetreatsEnd checks that splits whose rows are much larger than estimated are all loaded, if there is room for them, and otherwise that
// one of them fails, which had the memory for itself.
func TestRetreatsEnd(t *testing.T) {
	for name, test := range map[string]struct{ limit, want int64 }{
		"room for all":        {limit: 20*100 + 50, want: 20},
		"room for nine of 20": {limit: 9*100 + 50, want: 9},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, budget := NewLimiter(), offheap.NewBudget(test.limit)
			defer w.load()()
			group, ctx := errgroup.WithContext(t.Context())
			var loaded, retreats atomic.Int64
			for range 20 {
				group.Go(func() error {
					for {
						a, err := w.admit(ctx, budget, func() need { return need{compressed: 30, decoding: 20, rows: 1} })
						if err != nil {
							return err
						}
						built := int64(0)
						for ; built < 100 && err == nil; built += 10 {
							time.Sleep(time.Second) //nolint:forbidigo // the clock of synctest
							err = budget.Reserve(10)
						}
						if err == nil {
							loaded.Add(1)
							a.end()
							return nil
						}
						budget.Release(built - 10)
						again := a.retreat()
						a.end()
						if !again {
							return err
						}
						retreats.Add(1)
					}
				})
			}
			err := group.Wait()
			var full *offheap.ExhaustedError
			if loaded.Load() != test.want || (err != nil) != (test.want < 20) || err != nil && !errors.As(err, &full) {
				t.Errorf("%s: %d were loaded, error %v; want %d", name, loaded.Load(), err, test.want)
			}
			if n := retreats.Load(); n == 0 || n > 40 {
				t.Errorf("%s: %d retreats, want 1 to 40", name, n)
			}
		})
	}
}

// TestSetAside has two loads set memory aside for decoding a split again: the same memory, as much as the larger one needs, until both have ended.
func TestSetAside(t *testing.T) {
	budget, w := offheap.NewBudget(100), NewLimiter()
	if got := w.forAgain(budget); got != budget {
		t.Error("nothing is set aside, and the budget is another one")
	}
	endFirst, err := w.setAside(budget, 30)
	if err != nil {
		t.Fatal(err)
	}
	endSecond, err := w.setAside(budget, 50)
	if err != nil || budget.Used() != 50 {
		t.Fatalf("%d bytes are set aside, want 50: %v", budget.Used(), err)
	}
	if err := budget.Reserve(50); err != nil {
		t.Fatal(err)
	}
	if err := w.forAgain(budget).Reserve(50); err != nil {
		t.Errorf("what is set aside can't be reserved: %v", err)
	}
	if _, err := w.setAside(budget, 51); err == nil || budget.Used() != 100 {
		t.Errorf("more than there is was set aside: %v, %d bytes in use", err, budget.Used())
	}
	endFirst()
	if budget.Used() != 100 {
		t.Errorf("%d bytes in use while one load needs them, want 100", budget.Used())
	}
	endSecond()
	if budget.Used() != 50 {
		t.Errorf("%d bytes in use in the end, want 50", budget.Used())
	}
}
