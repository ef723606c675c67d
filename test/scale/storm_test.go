// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// stormMemory is how much more memory a head of 300 data nodes may take while ranks ask it, however many they are: half of it is garbage.
const stormMemory = 250e6

// TestStorm has more ranks ask at once than a head's memory for clients has room for: none may be refused.
func TestStorm(t *testing.T) {
	s := size{D: 40, S: 2000, W: 1600}
	p := startHead(t, config{Nodes: int(s.D), Splits: int(s.S), Memory: 64 << 20})
	defer p.stop()
	startStubs(t, int(s.D), protocol.MaxReaders, p).settle(t)
	p.await("Ready")
	storm(t, p, s, 0)
}

// storm has W ranks, each with a connection of its own, ask for a shuffled epoch at once. None may be refused. Two of three keep
// their connection afterwards, as other clients than the loader do.
func storm(t *testing.T, p *process, s size, idle float64) []figure {
	t.Helper()
	had, before, began := p.forget(), p.cpu(), time.Now()
	var wait, kept sync.WaitGroup
	var refused atomic.Int64
	all := make(chan struct{})
	for i := range int(s.W) {
		wait.Add(1)
		kept.Go(func() {
			defer wait.Done()
			r, err := ask(t.Context(), p.flight, epochOf(i))
			if err == nil {
				_, err = r.answer()
			}
			if err != nil && refused.Add(1) == 1 {
				t.Errorf("of %.0f ranks at once, one was refused: %v", s.W, err)
			}
			if r == nil {
				return
			}
			if i%3 > 0 {
				kept.Go(func() { r.idle(all) })
				return
			}
			_ = r.conn.Close()
		})
	}
	wait.Wait()
	close(all)
	took := time.Since(began)
	kept.Wait()
	if n := refused.Load(); n > 0 {
		t.Errorf("%d of %.0f ranks were refused", n, s.W)
	}
	used, memory := p.cpu()-before-idle*took.Seconds(), p.peak()-had
	t.Logf("%.0f ranks at once: %s, %.1f CPU-s, %s more memory", s.W, took.Round(time.Millisecond), used, amount(memory, ""))
	if page != "" && memory > stormMemory {
		t.Errorf("%.0f ranks at once took %s, want at most %s", s.W, amount(memory, ""), amount(stormMemory, ""))
	}
	return []figure{
		{fmt.Sprintf("%.0f ranks at once, an epoch each: head's CPU", s.W), "CPU-s", stormCPU(s), used, false},
		{fmt.Sprintf("%.0f ranks at once: more memory, at most", s.W), "", stormBytes(s), memory, false},
	}
}
