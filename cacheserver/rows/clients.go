// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"cmp"
	"sync"
)

// Clients is a budget as requests and answers use it: they also get what [Budget.Keep] keeps from rows. Safe for concurrent use.
//
// Connections and requests use all of it by Reserve. Answers leave a part to them (Allow), so that whoever holds the answers of all others
// does not keep anybody from asking, and no answer takes more than a quarter of what is free, so that one client leaves memory to the next.
type Clients struct{ budget *Budget }

const (
	// freely is what an answer may reserve at a time as long as it is free.
	freely = 1 << 20
	// fraction of the free memory is the most that a longer reservation of an answer takes.
	fraction = 4
	// asking is the part of what is kept for clients that answers leave to connections and requests, as a divisor; where nothing is kept,
	// of a sixteenth of the limit.
	asking = 2
)

// Clients is the budget for what clients cause.
func (b *Budget) Clients() Clients { return Clients{b} }

// Reserve takes n bytes or returns an *[ExhaustedError] and takes nothing.
func (c Clients) Reserve(n int64) error {
	return c.reserve(n, c.budget.limit)
}

func (c Clients) reserve(n, limit int64) error {
	if err := c.budget.reserve(n, limit); err != nil {
		return err
	}
	c.budget.clients.Add(n)
	return nil
}

// answer reserves memory for an answer.
func (c Clients) answer(n int64) error {
	if free := c.Free(); n > freely && n > free/fraction {
		return &ExhaustedError{Need: n, Used: c.budget.Used(), Limit: c.budget.limit, Most: max(free/fraction, min(free, freely))}
	}
	return c.reserve(n, c.forAnswers())
}

// forAnswers is the number of bytes that may be reserved at once when an answer is.
func (c Clients) forAnswers() int64 {
	return c.budget.limit - cmp.Or(c.budget.kept, c.budget.limit/16)/asking
}

// Release gives back n bytes that were reserved.
func (c Clients) Release(n int64) {
	c.budget.clients.Add(-n)
	c.budget.Release(n)
}

// Free is the number of bytes that answers may reserve.
func (c Clients) Free() int64 { return max(c.forAnswers()-c.budget.Used(), 0) }

// Used is the number of bytes that clients have reserved.
func (c Clients) Used() int64 { return c.budget.clients.Load() }

// Allowance is memory for one client's messages: some bytes set aside from the start, and beyond these what the budget has when they are
// needed. Safe for concurrent use; a nil one allows everything.
type Allowance struct {
	clients Clients

	mu   sync.Mutex
	size int64 // set aside: the budget has reserved max(size, used). Only Close changes it
	used int64
}

// Allow sets size bytes aside. The caller closes the allowance.
func (c Clients) Allow(size int64) (*Allowance, error) {
	if err := c.answer(size); err != nil {
		return nil, err
	}
	return &Allowance{clients: c, size: size}, nil
}

// Reserve takes n bytes or returns an *[ExhaustedError] and takes nothing.
func (a *Allowance) Reserve(n int64) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if more := max(a.size, a.used+n) - max(a.size, a.used); more > 0 {
		if err := a.clients.answer(more); err != nil {
			return err
		}
	}
	a.used += n
	return nil
}

// Release gives back n bytes that were reserved.
func (a *Allowance) Release(n int64) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before := max(a.size, a.used)
	a.used -= n
	a.clients.Release(before - max(a.size, a.used))
}

// Close gives back what is set aside. What is still in use stays reserved until it is released.
func (a *Allowance) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := max(a.size, a.used)
	a.size = 0
	a.clients.Release(before - a.used)
}
