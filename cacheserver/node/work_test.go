// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkBoundsWhatIsDecodedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWork()
		loaded := w.load(1000) // 100 may be used
		var mu sync.Mutex
		var now, most int64
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				done := w.begin(40)
				mu.Lock()
				now += 40
				most = max(most, now)
				mu.Unlock()
				time.Sleep(time.Second) // fake time passes when nobody else can begin
				mu.Lock()
				now -= 40
				mu.Unlock()
				done()
			})
		}
		all.Wait()
		if most != 80 {
			t.Errorf("%d bytes were in use at once, want 80 of 100", most)
		}
		loaded()
		w.begin(1 << 40)() // alone, whatever it needs
		if w.used != 0 || w.capacity != 0 {
			t.Errorf("used %d, capacity %d are left", w.used, w.capacity)
		}
	})
}
