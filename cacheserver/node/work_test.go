// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/chunk"
	"github.com/kubeflow/datacache/cacheserver/iceberg"
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

func TestNarrowRowGroupsOfAGigabyteAreDecodedSideBySide(t *testing.T) {
	const table = 1 << 30
	narrow := arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64}
	for name, test := range map[string]struct {
		fields []arrow.Field
		split  iceberg.Split
		beside bool
	}{
		"nine columns of small values":   {[]arrow.Field{narrow, narrow, narrow, narrow, narrow, narrow, narrow, narrow, narrow}, iceberg.Split{Rows: 524_288, Bytes: 46 << 20}, true},
		"one page is the whole of 40 MB": {[]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}}, iceberg.Split{Rows: 2048, Bytes: 40 << 20}, false},
	} {
		layout, err := chunk.NewLayout(arrow.NewSchema(test.fields, nil))
		if err != nil {
			t.Fatal(err)
		}
		one := (&part{layout: layout}).decoding(test.split)
		if beside := 2*one <= table/workShare; beside != test.beside {
			t.Errorf("%s: a row group takes %d bytes: two at once is %t, want %t", name, one, beside, test.beside)
		}
	}
}
