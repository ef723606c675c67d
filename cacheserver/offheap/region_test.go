// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// TestRegionsHaveTheirContent holds random regions, of which only some fit in the budget, in several goroutines. Some reads fail.
func TestRegionsHaveTheirContent(t *testing.T) {
	seed := seedtest.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	const limit, readers = 100 * PageSize, 4
	budget := NewBudget(limit)
	arena := NewArena(budget).Paged()
	want, regions := make([][]byte, 60), make([]*Region, 60)
	memory := make([][]byte, len(regions))
	broken := errors.New("the disk is broken")
	for i := range regions {
		want[i] = bytes.Repeat([]byte{byte(i + 1)}, (8+random.IntN(5))*PageSize)
		fails := rand.New(rand.NewPCG(seed, uint64(i)))
		var err error
		regions[i], memory[i], err = arena.NewRegion(int64(len(want[i])), func(to []byte) error {
			if fails.IntN(10) == 0 {
				return broken
			}
			copy(to, want[i])
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var group sync.WaitGroup
	for g := range readers {
		random := rand.New(rand.NewPCG(seed, uint64(1000+g)))
		group.Go(func() {
			for range 2000 {
				i := random.IntN(len(regions))
				if err := regions[i].Hold(); err != nil {
					if !errors.Is(err, broken) {
						t.Errorf("hold region %d: %v", i, err)
					}
					continue
				}
				if !bytes.Equal(memory[i], want[i]) {
					t.Errorf("region %d has other content", i)
				}
				regions[i].Drop()
			}
		})
	}
	group.Wait()
	resident := int64(0)
	for i, r := range regions {
		if r.IsResident() {
			resident += int64(len(memory[i]))
		}
	}
	if used := budget.Used(); used != resident || arena.Bytes() != resident || budget.Free() != limit {
		t.Errorf("%d bytes are in memory; %d used, %d of the arena, %d free", resident, used, arena.Bytes(), budget.Free())
	}
	if resident < limit/2 || budget.Peak() > limit {
		t.Errorf("%d bytes are in memory, at most there were %d: want nearly %d", resident, budget.Peak(), limit)
	}
	arena.Release()
	if budget.Used() != 0 || budget.Heap() != limit {
		t.Errorf("%d bytes are used after the end, %d for the heap", budget.Used(), budget.Heap())
	}
}

// TestPagesAreTakenOver reads regions one after the other, where there is memory for two: the third has the pages of the first.
func TestPagesAreTakenOver(t *testing.T) {
	arena := NewArena(NewBudget(20 * PageSize)).Paged()
	defer arena.Release()
	var regions []*Region
	for _, pages := range []int64{9, 9, 8} {
		r, memory, err := arena.NewRegion(pages*PageSize, func([]byte) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, r)
		if err := r.Hold(); err != nil {
			t.Fatal(err)
		}
		if got := memory[PageSize]; pages == 8 && movesPages() && got != 1 {
			t.Errorf("the pages have %d, want what the first region had", got)
		}
		memory[PageSize] = byte(len(regions))
		r.Drop()
	}
	if regions[0].IsResident() || !regions[1].IsResident() || !regions[2].IsResident() {
		t.Error("the oldest region is still in memory, or another one is not")
	}
	if got := arena.Bytes(); got != 17*PageSize || arena.Budget().Used() != got {
		t.Errorf("%d bytes are used", got)
	}
}

// movesPages reports whether the kernel can move pages.
func movesPages() bool {
	arena := NewArena(NewBudget(2 * PageSize)).Paged()
	defer arena.Release()
	from, _ := arena.Alloc(PageSize)
	to, _ := arena.Alloc(PageSize)
	return movePages(from, to) == nil
}
