// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import (
	"errors"
	"testing"
)

// TestClientsOfAFullNode fills budgets of any size with rows: there must still be memory for responses and, once these have used it
// up, for requests.
func TestClientsOfAFullNode(t *testing.T) {
	for _, limit := range []int64{300 << 20, 12 << 30, 1 << 40} {
		kept := min(limit/16, 256<<20)
		b := NewBudget(limit).Keep(kept)
		if err := b.Reserve(limit - kept); err != nil {
			t.Fatal(err)
		}
		var full *ExhaustedError
		if err := b.Reserve(1); !errors.As(err, &full) || full.Kept != kept {
			t.Errorf("rows took what is kept for clients: %v", err)
		}
		c := b.Clients()
		if _, err := c.Allow(c.Free()/fraction + freely); !errors.As(err, &full) || full.Most != c.Free()/fraction {
			t.Errorf("one answer may take more than a quarter: %v", err)
		}
		a, err := c.Allow(freely)
		if err != nil {
			t.Fatal(err)
		}
		for a.Reserve(freely) == nil {
		}
		if left := limit - b.Used(); left < kept/asking || left > kept/asking+2*freely {
			t.Errorf("answers left %d of the %d bytes kept for clients, want %d", left, kept, kept/asking)
		}
		if err := c.Reserve(kept / asking); err != nil {
			t.Errorf("a request beside them: %v", err)
		}
		c.Release(kept / asking)
		a.Release(freely)
		for c.Extend(freely/16) == nil {
		}
		if err := c.Connect(freely); err != nil {
			t.Errorf("long requests left no room for connections: %v", err)
		}
		c.Release(c.Used() - a.used + freely)
		if err := a.Reserve(freely); err != nil {
			t.Fatal(err)
		}
		for c.Connect(freely/16) == nil {
		}
		if err := c.Reserve(kept / asking / calling); err != nil {
			t.Errorf("connections left no room for requests: %v", err)
		}
		c.Release(c.Used() - a.used)
		a.Close()
		a.Release(a.used)
		if c.Used() != 0 || b.Used() != limit-kept {
			t.Errorf("%d bytes of clients are still reserved", c.Used())
		}
	}
}
