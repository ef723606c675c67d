// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// TestDemand starts splits in the order in which streams need them, and then the others.
func TestDemand(t *testing.T) {
	d := newDemand(7)
	var order []int
	start := func() bool {
		split, ok := d.start()
		if ok {
			order = append(order, split)
		}
		return ok
	}
	start()
	d.want(0, 1) // it has started
	d.want(5, 30)
	d.want(3, 20)
	d.want(6, 10)
	d.want(5, 5)
	d.want(3, 25)
	for start() {
	}
	if want := []int{0, 5, 6, 3, 1, 2, 4}; !slices.Equal(order, want) {
		t.Errorf("splits started in the order %v, want %v", order, want)
	}
}

// TestTheEndOfALoadEndsWaits checks that waits end with the error of a load, and that splits which arrive later are ignored.
func TestTheEndOfALoadEndsWaits(t *testing.T) {
	e := NewEarly(2)
	e.open(nil, []source.Split{{Rows: 5, Exact: true}, {Rows: 3, Exact: true}}, nil)
	if count, _, ok := e.Expected(); count != 8 || !ok {
		t.Errorf("%d rows expected (%t), want 8", count, ok)
	}
	waited := make(chan error)
	go func() {
		_, _, _, err := e.Rows(context.WithoutCancel(t.Context()), []rows.Run{{First: 4, Rows: 2}})
		waited <- err
	}()
	broken := errors.New("broken")
	e.End(nil, broken)
	e.End(nil, errors.New("later"))
	e.add(1, rows.Sealed{Rows: 3})
	if err := <-waited; !errors.Is(err, broken) {
		t.Errorf("the wait ended with %v, want %v", err, broken)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	other := NewEarly(1)
	other.open(nil, []source.Split{{Rows: 5, Exact: true}}, nil)
	if _, _, _, err := other.Rows(canceled, []rows.Run{{First: 0, Rows: 1}}); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled wait ended with %v", err)
	}
	uncounted := NewEarly(1)
	uncounted.open(nil, []source.Split{{Rows: 5}}, nil)
	if _, _, ok := uncounted.Expected(); ok {
		t.Error("the rows of a split with deletes are known")
	}
}

// TestALoadMayEndBeforeItOpens checks that a load which is given up at once opens nothing afterwards.
func TestALoadMayEndBeforeItOpens(t *testing.T) {
	e := NewEarly(1)
	e.End(nil, errors.New("given up"))
	e.open(nil, []source.Split{{Rows: 5, Exact: true}}, nil)
	if !e.IsOpen() {
		t.Error("calls would wait for a load that has ended")
	}
	if _, _, ok := e.Expected(); ok {
		t.Error("rows are expected of a load that has ended")
	}
}
