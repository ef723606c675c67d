// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import (
	"cmp"
	"sync"
)

// Clients is the view of a budget for requests and responses, which may also use the bytes set aside by [Budget.Keep]. It is safe for
// concurrent use.
//
// Reserve, for short requests, may use all of it. Connect, for connections, leaves room for the requests of those that are open. Extend, for
// long requests, and Allow, for responses, leave a larger part free, so that a client that holds all of their memory can't prevent others from
// connecting and sending short requests. And no response reserves more than a quarter of the free memory, so that memory is left for the next
// client.
type Clients struct{ budget *Budget }

const (
	// freely is how many bytes a response may always reserve at once if they are free.
	freely = 1 << 20
	// fraction is the divisor of the free memory that bounds a response's larger reservations.
	fraction = 4
	// asking is the divisor that yields the part of the bytes kept for clients that responses and long requests leave to others; if
	// none are kept, it applies to a sixteenth of the limit.
	asking = 2
	// calling is the divisor of that part that yields the bytes that connections leave to requests.
	calling = 2
)

// Clients returns the budget's view for clients.
func (b *Budget) Clients() Clients { return Clients{b} }

// Reserve reserves n bytes; if they don't fit, it reserves nothing and returns an *[ExhaustedError].
func (c Clients) Reserve(n int64) error {
	return c.reserve(n, c.budget.limit)
}

// Extend reserves n bytes for a long request, and leaves as much free as responses do.
func (c Clients) Extend(n int64) error { return c.reserve(n, c.forAnswers()) }

// Connect reserves n bytes for a connection, and leaves room for requests.
func (c Clients) Connect(n int64) error {
	return c.reserve(n, c.budget.limit-c.forRequests()/calling)
}

func (c Clients) reserve(n, limit int64) error {
	if err := c.budget.reserve(n, limit); err != nil {
		return err
	}
	c.budget.clients.Add(n)
	return nil
}

// answer reserves memory for a response.
func (c Clients) answer(n int64) error {
	if free := c.Free(); n > freely && n > free/fraction {
		return &ExhaustedError{Need: n, Used: c.budget.Used(), Limit: c.budget.limit, Most: max(free/fraction, min(free, freely))}
	}
	return c.reserve(n, c.forAnswers())
}

// forAnswers is the maximum number of bytes reserved in the budget when a response or a long request reserves some.
func (c Clients) forAnswers() int64 { return c.budget.limit - c.forRequests() }

// forRequests is the number of bytes that responses and long requests leave to connections and short requests.
func (c Clients) forRequests() int64 { return cmp.Or(c.budget.kept, c.budget.limit/16) / asking }

// Release returns n reserved bytes.
func (c Clients) Release(n int64) {
	c.budget.clients.Add(-n)
	c.budget.Release(n)
}

// Evictable adds n, which may be negative, to the bytes that are released by the function of OnShortage when others need them.
func (c Clients) Evictable(n int64) { c.budget.evictable.Add(n) }

// OnShortage registers what is called when a reservation lacks n bytes. It releases at least as many of those that Evictable counts, if there are so
// many, and returns how many.
func (c Clients) OnShortage(release func(n int64) (freed int64)) {
	c.budget.addEvictor(&shortage{release})
}

// shortage is an evictor of memory of clients.
type shortage struct{ release func(n int64) (freed int64) }

// evict implements evictor.
func (s *shortage) evict(n int64) (freed int64) { return s.release(n) }

// Free is the number of bytes that responses may still reserve.
func (c Clients) Free() int64 {
	return max(c.forAnswers()-c.budget.Used()+c.budget.evictable.Load(), 0)
}

// Used is the number of bytes that clients have reserved.
func (c Clients) Used() int64 { return c.budget.clients.Load() }

// Allowance is the memory for the messages of one client: some bytes reserved from the start, and more from the budget as needed. It
// is safe for concurrent use; a nil Allowance has no limit.
type Allowance struct {
	clients Clients

	mu   sync.Mutex
	size int64 // reserved from the start: the budget has max(size, used) reserved; only Close changes it
	used int64
}

// Allow returns an allowance that starts with size bytes. The caller closes it.
func (c Clients) Allow(size int64) (*Allowance, error) {
	if err := c.answer(size); err != nil {
		return nil, err
	}
	return &Allowance{clients: c, size: size}, nil
}

// Size is the number of bytes that are reserved from the start; 0 once the allowance is closed.
func (a *Allowance) Size() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.size
}

// Reserve reserves n bytes; if they don't fit, it reserves nothing and returns an *[ExhaustedError].
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

// Release returns n reserved bytes.
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

// Close returns the bytes reserved from the start. Bytes still in use stay reserved until they are released.
func (a *Allowance) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := max(a.size, a.used)
	a.size = 0
	a.clients.Release(before - a.used)
}
