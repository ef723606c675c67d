// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

func TestRangeRefuses(t *testing.T) {
	st := load(t, numbers(t, 0, 0).Schema(), 1000, numbers(t, 0, 100))
	for _, c := range [][2]int64{{-1, 5}, {0, 101}, {101, 101}, {5, 4}} {
		count := 0
		for m, err := range st.rows.Range(st.layout.All(), c[0], c[1]) {
			count++
			if err == nil || !strings.Contains(err.Error(), fmt.Sprint(c[0])) || m.Header != nil {
				t.Errorf("range %d: %v", c, err)
			}
		}
		if count != 1 {
			t.Errorf("range %d yields %d times", c, count)
		}
	}
}

func TestGatherRefuses(t *testing.T) {
	st := load(t, numbers(t, 0, 0).Schema(), 1000, numbers(t, 0, 100))
	for _, run := range []Run{{First: math.MaxUint64, Rows: 1}, {First: 100, Rows: 1}, {First: 1 << 62, Rows: 1}, {First: 98, Rows: 3}, {First: 50}, {First: 50, Rows: math.MaxUint64}} {
		_, _, err := st.rows.Gather(st.layout.All(), []Run{{First: 0, Rows: 1}, {First: 99, Rows: 1}, run, {First: 50, Rows: 4}}, 4, 1<<20)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("rows [%d, %d)", run.First, run.First+run.Rows)) {
			t.Errorf("%+v: error %v doesn't name it", run, err)
		}
	}
	other, err := NewLayout(single(raw(arrow.Null, 1, nil, nil)).Schema())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.rows.Gather(st.layout.All(), runsOf(1, 2, 3), 4, 1<<20); err == nil || !strings.Contains(err.Error(), "1 rows fewer") {
		t.Errorf("4 rows of runs of 3: error %v does not say so", err)
	}
	if _, _, err := st.rows.Gather(other.All(), runsOf(0), 1, 1<<20); err == nil {
		t.Error("a projection of another schema is taken")
	}
	if _, err := NewRows(other, st.sealed.Chunks); err == nil {
		t.Error("chunks of another schema are taken")
	}
	same, err := NewLayout(st.layout.Schema())
	if err != nil {
		t.Fatal(err)
	}
	equalBatches(t, "equal layout", st.readRows(t, same.All(), []int64{3}, 1<<20), numbers(t, 3, 4))
}

// TestGatherIsFull checks that Gather takes exactly as many rows as fit.
func TestGatherIsFull(t *testing.T) {
	st := load(t, numbers(t, 0, 0).Schema(), 10_000, numbers(t, 0, 3000))
	d := newDice(t, 1)
	rows := d.picks(3000)
	for range 9 {
		rows = append(rows, d.picks(3000)...)
	}
	gather := func(most, limit int) Message {
		m, _, err := st.rows.Gather(st.layout.All(), runsOf(rows...), most, limit)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
		return m
	}
	for _, limit := range []int{1, 64, 500, 1000, 4096, 5000, 20_000, 1 << 30} {
		m := gather(len(rows), limit)
		if m.Rows > 1 && m.BodyLen > limit {
			t.Errorf("limit %d: %d rows take %d bytes", limit, m.Rows, m.BodyLen)
		}
		if m.Rows == len(rows) {
			continue
		}
		more := gather(m.Rows+1, 1<<30)
		if more.Rows != m.Rows+1 || more.BodyLen <= limit {
			t.Errorf("limit %d: took %d rows, but %d take only %d bytes", limit, m.Rows, more.Rows, more.BodyLen)
		}
	}
}

// TestGatherDropsBitmaps checks that a bitmap whose nulls are all in rows that were not picked is omitted.
func TestGatherDropsBitmaps(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{
		nullable("a", arrow.PrimitiveTypes.Int64), nullable("b", list(arrow.BinaryTypes.String)), nullable("c", arrow.FixedWidthTypes.Boolean),
	}, nil)
	batch := batchFromJSON(t, s, `[{"a":1,"b":["x"],"c":true},{"a":null,"b":null,"c":null},{"a":3,"b":["y",null],"c":false},{"a":4,"b":[],"c":true}]`)
	st := load(t, s, 0, batch)
	m, _, err := st.rows.Gather(st.layout.All(), runsOf(3, 0), 2, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	// a: values; b: offsets, the strings' offsets and data; c: bits.
	if want := 5 * align; m.BodyLen != want {
		t.Errorf("body of %d bytes, want %d", m.BodyLen, want)
	}
	equalBatches(t, "rows", decode(t, s, m), take(t, batch, []int64{3, 0}))
}

// TestGatherManySlots checks that slots that need no memory are bounded too: a message's arrays stay below 2^31 slots.
func TestGatherManySlots(t *testing.T) {
	const size = 900_000_000
	offsets := arrow.Int64Traits.CastToBytes([]int64{0, size})
	batch := single(raw(arrow.LargeListOf(arrow.Null), 1, nil, [][]byte{offsets}, raw(arrow.Null, size, nil, nil)))
	st := load(t, batch.Schema(), 0, batch)
	m, _, err := st.rows.Gather(st.layout.All(), runsOf(0, 0, 0, 0), 4, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if m.Rows != 2 {
		t.Errorf("took %d rows of %d slots, want 2", m.Rows, size)
	}
}

// TestLifetime checks that a message stays readable after everything else is released, and that the memory is freed with it.
func TestLifetime(t *testing.T) {
	batch := numbers(t, 0, 1000)
	l, err := NewLayout(batch.Schema())
	if err != nil {
		t.Fatal(err)
	}
	budget := offheap.NewBudget(1 << 30)
	a := offheap.NewArena(budget)
	b := NewBuilder(l, a, 4096)
	if err := b.Append(batch, nil); err != nil {
		t.Fatal(err)
	}
	sealed, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRows(l, sealed.Chunks)
	if err != nil {
		t.Fatal(err)
	}
	a.Release()
	var first Message
	for m, err := range r.Range(l.All(), 0, r.Len()) {
		if err != nil {
			t.Fatal(err)
		}
		first = m
		break
	}
	r.Release()
	if budget.Used() == 0 {
		t.Fatal("the memory went while a message points to it")
	}
	got := decode(t, l.Schema(), first) // releases it
	equalBatches(t, "message", got, batch.NewSlice(0, int64(first.Rows)))
	if budget.Used() != 0 {
		t.Fatalf("used %d after the last release", budget.Used())
	}
	first.Release()
	if budget.Used() != 0 {
		t.Error("a second release of a message changed the budget")
	}
	if r.Retain() {
		t.Error("retain after the last release")
	}
	if _, _, err := r.Gather(l.All(), runsOf(0), 1, 1); !errors.Is(err, offheap.ErrReleased) {
		t.Errorf("gather after the last release: %v", err)
	}
	for _, err := range r.Range(l.All(), 0, 1) {
		if !errors.Is(err, offheap.ErrReleased) {
			t.Errorf("range after the last release: %v", err)
		}
	}
	if _, err := NewRows(l, sealed.Chunks); !errors.Is(err, offheap.ErrReleased) {
		t.Errorf("rows of released chunks: %v", err)
	}
}

// TestConcurrent reads different columns in many goroutines while the owner releases the rows; it is meant for -race.
func TestConcurrent(t *testing.T) {
	d := newDice(t, 3)
	s := arrow.NewSchema([]arrow.Field{
		nullable("a", arrow.PrimitiveTypes.Int64), nullable("b", list(arrow.BinaryTypes.String)),
		nullable("c", arrow.FixedWidthTypes.Boolean), nullable("d", arrow.BinaryTypes.String),
	}, nil)
	batch := d.batch(t, s, 2000)
	l, err := NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	budget := offheap.NewBudget(1 << 30)
	a := offheap.NewArena(budget)
	var mu sync.Mutex
	var chunks []*Chunk
	var builders sync.WaitGroup
	for range 4 {
		builders.Go(func() {
			b := NewBuilder(l, a, 4096)
			defer b.Close()
			if err := b.Append(batch, nil); err != nil {
				t.Error(err)
			}
			sealed, err := b.Finish()
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			chunks = append(chunks, sealed.Chunks...)
		})
	}
	builders.Wait()
	r, err := NewRows(l, chunks)
	if err != nil {
		t.Fatal(err)
	}
	if r.Len() != 8000 {
		t.Fatalf("%d rows", r.Len())
	}
	a.Release()
	var readers sync.WaitGroup
	for i := range 8 {
		readers.Go(func() {
			if err := readSome(r, i); err != nil {
				t.Error(err)
			}
		})
	}
	readers.Wait()
	r.Release()
	if budget.Used() != 0 {
		t.Errorf("used %d after the last release", budget.Used())
	}
}

// readSome runs Gather and Range over two columns and reads the results.
func readSome(r *Rows, i int) error {
	p, err := r.layout.Project([]int{i % 4, (i + 1 + i/4) % 4})
	if err != nil {
		return err
	}
	for k := range int64(50) {
		m, _, err := r.Gather(p, runsOf(k, 7000+k, 5, 6, 7), 5, 1<<20)
		if err != nil {
			return err
		}
		messages := []Message{m}
		for m, err := range r.Range(p, 3*k, 2000+k) {
			if err != nil {
				return err
			}
			if messages = append(messages, m); len(messages) > 3 {
				break
			}
		}
		for _, m := range messages {
			for _, b := range m.Body {
				if len(bytes.Clone(b)) == 0 {
					return errors.New("an empty slice in a body")
				}
			}
			m.Release()
		}
	}
	return nil
}

// TestFind finds every row in chunks of very different lengths.
func TestFind(t *testing.T) {
	for _, lengths := range [][]int64{{1}, {5, 5, 5}, {100000, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3}, {1, 1, 50000, 1, 7, 7, 7}} {
		r := &Rows{starts: []int64{0}}
		for i, n := range lengths {
			r.chunks = append(r.chunks, &Chunk{slab: slab{rows: n}})
			r.starts = append(r.starts, r.starts[i]+n)
		}
		r.index()
		for c := range lengths {
			for _, row := range []int64{r.starts[c], (r.starts[c] + r.starts[c+1]) / 2, r.starts[c+1] - 1} {
				if got := r.find(row); got != c {
					t.Errorf("lengths %d: row %d is found in chunk %d, want %d", lengths, row, got, c)
				}
			}
		}
	}
}

func TestColumnBytes(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{nullable("a", arrow.PrimitiveTypes.Int64), nullable("n", arrow.Null), nullable("b", arrow.BinaryTypes.String)}, nil)
	st := load(t, s, 0, batchFromJSON(t, s, `[{"a":1,"b":"x"},{"a":2,"b":null}]`))
	// a: values; n: nothing; b: bitmap, offsets and data
	if got, want := fmt.Sprint(st.rows.ColumnBytes()), fmt.Sprint([]int{64, 0, 192}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSchemaHeader(t *testing.T) {
	s := single(raw(arrow.PrimitiveTypes.Int32, 1, nil, [][]byte{int32s(1)})).Schema()
	got := decode(t, s)
	if !got.Schema().Equal(s) || got.NumRows() != 0 {
		t.Errorf("stream without messages: %v", got)
	}
	if _, ok := got.Column(0).(*array.Int32); !ok {
		t.Errorf("column is %T", got.Column(0))
	}
}
