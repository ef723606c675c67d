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

// TestPrepaid reserves in a budget whose first bytes were reserved in another one before: only more than these is reserved there.
func TestPrepaid(t *testing.T) {
	whole := NewBudget(100)
	if err := whole.Reserve(40); err != nil {
		t.Fatal(err)
	}
	paid := whole.Prepaid(40)
	if err := whole.Reserve(60); err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error, used, of int64) {
		t.Helper()
		if err != nil || paid.Used() != used || whole.Used() != of {
			t.Errorf("%s: %v, %d used, want %d; of the whole %d, want %d", what, err, paid.Used(), used, whole.Used(), of)
		}
	}
	check("within what is paid", paid.Reserve(30), 30, 100)
	var full *ExhaustedError
	if err := paid.Reserve(11); !errors.As(err, &full) || full.Need != 1 {
		t.Errorf("more than is paid: %v, want that 1 byte is missing", err)
	}
	check("after that", nil, 30, 100)
	whole.Release(5)
	check("more than is paid", paid.Reserve(13), 43, 98)
	paid.Release(10)
	check("released in part", nil, 33, 95)
	paid.Release(33)
	check("released", nil, 0, 95)
}
