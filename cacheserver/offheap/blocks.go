// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import (
	"fmt"
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"
)

// leastBlock and mostBlock bound the length of blocks, which are powers of two.
const leastBlock, mostBlock = 16 << 10, 1 << 20

// Blocks is memory that short-lived arenas use one after the other: new pages would cost more than the copies into them. It is safe for concurrent
// use; make it with NewBlocks.
type Blocks struct {
	budget *Budget

	mu   sync.Mutex
	free map[int][][]byte // by length
}

// NewBlocks returns an empty pool.
func NewBlocks(budget *Budget) *Blocks {
	b := &Blocks{budget: budget, free: map[int][][]byte{}}
	budget.addEvictor(b)
	return b
}

// NewArena makes an arena for about a number of bytes, of blocks that are short beside it. Longer allocations are mapped as in other arenas.
func (b *Blocks) NewArena(bytes int64) *Arena {
	a := NewArena(b.budget)
	a.pool, a.block = b, 1<<(bits.Len64(uint64(min(max(bytes/32, leastBlock), mostBlock)))-1)
	return a
}

// get returns a block of n bytes, which are reserved in the budget; its content is arbitrary.
func (b *Blocks) get(n int) ([]byte, error) {
	b.mu.Lock()
	if free := b.free[n]; len(free) > 0 {
		last := len(free) - 1
		block := free[last]
		b.free[n] = free[:last]
		b.budget.evictable.Add(-int64(n))
		b.mu.Unlock()
		return block, nil
	}
	b.mu.Unlock()
	if err := b.budget.Reserve(int64(n)); err != nil {
		return nil, err
	}
	block, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|mapNoReserve)
	if err != nil {
		b.budget.Release(int64(n))
		return nil, err
	}
	b.budget.countMapped(int64(n))
	Populate(block)
	return block, nil
}

// put takes blocks back.
func (b *Blocks) put(blocks [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, block := range blocks {
		b.free[len(block)] = append(b.free[len(block)], block)
		b.budget.evictable.Add(int64(len(block)))
	}
}

// evict implements evictor.
func (b *Blocks) evict(n int64) (freed int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for size := range b.free {
		for freed < n && len(b.free[size]) > 0 {
			last := len(b.free[size]) - 1
			if err := unix.Munmap(b.free[size][last]); err != nil {
				panic(fmt.Sprintf("offheap: unmap of a block that was mapped: %v", err))
			}
			b.free[size] = b.free[size][:last]
			b.budget.evictable.Add(-int64(size))
			b.budget.countMapped(-int64(size))
			b.budget.Release(int64(size))
			freed += int64(size)
		}
	}
	return freed
}

// Close frees the blocks that no arena uses. Arenas must have been released.
func (b *Blocks) Close() {
	b.budget.removeEvictor(b)
	b.evict(1 << 62)
}

// allocBlock allocates n bytes, which are not zeroed, from a block.
func (a *Arena) allocBlock(n int) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refs.Load() <= 0 {
		return nil, ErrReleased
	}
	if n > len(a.free) {
		block, err := a.pool.get(a.block)
		if err != nil {
			return nil, err
		}
		a.blocks, a.free = append(a.blocks, block), block
	}
	b := a.free[:n:n]
	a.free = a.free[n:]
	return b, nil
}
