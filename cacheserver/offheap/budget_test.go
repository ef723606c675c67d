// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import (
	"errors"
	"runtime/debug"
	"testing"
)

// Without room for what lives in the heap, the collector runs without end.
func TestReserveHeap(t *testing.T) {
	was := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(was)
	b := NewBudget(1 << 30)
	if err := b.ReserveHeap(100); err != nil {
		t.Fatal(err)
	}
	if got := debug.SetMemoryLimit(-1); got != was {
		t.Errorf("before LimitHeap the heap's limit became %d", got)
	}
	b.LimitHeap(b.Free() - 1000)
	for _, step := range []struct {
		does func()
		want int64
	}{
		{func() {}, heapSlack + 1100},
		{func() { b.ReleaseHeap(100) }, heapSlack + 1000},
		{func() {
			if err := b.ReserveHeap(1 << 20); err != nil {
				t.Error(err)
			}
		}, heapSlack + 1000 + 1<<20},
		{func() { b.LimitHeap(b.Free()) }, heapSlack + 1<<20},
		{func() {
			if full := new(ExhaustedError); !errors.As(b.ReserveHeap(1<<30), &full) {
				t.Error("more than the budget was reserved")
			}
		}, heapSlack + 1<<20},
		{func() { b.ReleaseHeap(1 << 20) }, heapSlack},
	} {
		if step.does(); debug.SetMemoryLimit(-1) != step.want {
			t.Errorf("the heap's limit is %d, want %d", debug.SetMemoryLimit(-1), step.want)
		}
	}
	if b.Used() != 0 {
		t.Errorf("%d bytes are still reserved", b.Used())
	}
}

// TestPrepaid reserves in a budget whose bytes were reserved in another one before: that one does not change, and is not needed.
func TestPrepaid(t *testing.T) {
	whole := NewBudget(100)
	if err := whole.Reserve(40); err != nil {
		t.Fatal(err)
	}
	paid := whole.Prepaid(40)
	if err := whole.Reserve(60); err != nil {
		t.Fatal(err)
	}
	if err := paid.Reserve(30); err != nil || paid.Used() != 30 || whole.Used() != 100 {
		t.Errorf("Reserve: %v, %d used of 40, %d of 100", err, paid.Used(), whole.Used())
	}
	var full *ExhaustedError
	if err := paid.Reserve(11); !errors.As(err, &full) || full.Limit != 40 {
		t.Errorf("more than was paid: %v", err)
	}
	paid.Release(30)
	if paid.Used() != 0 || whole.Used() != 100 {
		t.Errorf("after Release: %d used of 40, %d of 100", paid.Used(), whole.Used())
	}
}
