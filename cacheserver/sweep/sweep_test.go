// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// table is the same rows twice: in memory, and in files.
type table struct {
	budget *offheap.Budget // of the stored ones
	plain  *rows.Rows
	stored *rows.Rows
	layout *rows.Layout
}

var schema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "class", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "weight", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "flag", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
	{Name: "embedding", Type: arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32)},
	{Name: "nested", Type: arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, arrow.Field{Name: "b", Type: arrow.BinaryTypes.LargeBinary, Nullable: true})},
}, nil)

// batch makes n random rows from number first on.
func batch(r *rand.Rand, first, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	base := r.Int64N(1 << 40) // another form of the integers in each batch
	for i := range n {
		b.Field(0).(*array.Int64Builder).Append(int64(first + i))
		null := func() bool { return r.IntN(5) == 0 }
		for c, add := range []func(){
			func() { b.Field(1).(*array.Int32Builder).Append(r.Int32N(1 << (1 + base%20))) },
			func() { b.Field(2).(*array.Float64Builder).Append(r.Float64()) },
			func() { b.Field(3).(*array.BooleanBuilder).Append(r.IntN(2) == 0) },
			func() { b.Field(4).(*array.StringBuilder).Append(fmt.Sprint(r.Uint64N(1 << r.IntN(60)))) },
		} {
			if null() {
				b.Field(c + 1).AppendNull()
			} else {
				add()
			}
		}
		tokens := b.Field(5).(*array.ListBuilder)
		tokens.Append(!null())
		for range r.IntN(20) {
			tokens.ValueBuilder().(*array.Int32Builder).Append(int32(base%1000) + r.Int32N(60000))
		}
		embedding := b.Field(6).(*array.FixedSizeListBuilder)
		embedding.Append(true)
		for range 3 {
			embedding.ValueBuilder().(*array.Float32Builder).Append(r.Float32())
		}
		nested := b.Field(7).(*array.StructBuilder)
		nested.Append(true)
		nested.FieldBuilder(0).(*array.Int64Builder).Append(base + r.Int64N(200))
		nested.FieldBuilder(1).(*array.BinaryBuilder).Append(make([]byte, r.IntN(300)))
	}
	return b.NewRecordBatch()
}

// tokens makes n random rows of 1 KiB.
func tokens(r *rand.Rand, _, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}}, nil))
	defer b.Release()
	list := b.Field(0).(*array.ListBuilder)
	for range n {
		list.Append(true)
		for range 512 {
			list.ValueBuilder().(*array.Int32Builder).Append(r.Int32N(50000))
		}
	}
	return b.NewRecordBatch()
}

// newTable makes a table of splits with n rows each.
func newTable(t testing.TB, r *rand.Rand, splits, n int, limit int64) *table {
	t.Helper()
	return newTableOf(t, r, splits, n, limit, batch)
}

// newTableOf makes a table of splits with n rows each, which batch makes.
func newTableOf(t testing.TB, r *rand.Rand, splits, n int, limit int64, batch func(r *rand.Rand, first, n int) arrow.RecordBatch) *table {
	t.Helper()
	layout, err := rows.NewLayout(batch(r, 0, 1).Schema())
	if err != nil {
		t.Fatal(err)
	}
	tb := &table{budget: offheap.NewBudget(limit), layout: layout}
	dir := spill.New(t.TempDir(), 0, 0)
	build, plain, stored := offheap.NewArena(offheap.NewBudget(1<<40)).Paged(), []*rows.Chunk(nil), []*rows.Chunk(nil)
	arena := offheap.NewArena(tb.budget).Paged()
	for split := range splits {
		b := rows.NewBuilder(layout, build, 64<<10)
		for i := range 4 {
			if err := b.Append(batch(r, split*n+i*n/4, n/4), nil); err != nil {
				t.Fatal(err)
			}
		}
		sealed, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		file, err := dir.Write("plan", split, nil, sealed)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close(false) })
		away, err := file.Attach(layout, arena, file)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, away.Chunks...)
		plain = append(plain, sealed.Chunks...)
	}
	if tb.plain, err = rows.NewRows(layout, plain); err != nil {
		t.Fatal(err)
	}
	if tb.stored, err = rows.NewRows(layout, stored); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tb.plain.Release()
		tb.stored.Release()
		build.Release()
		arena.Release()
		deadline.Until(t, "all memory to be released", func() bool { return tb.budget.Used() == 0 })
	})
	return tb
}

// body is a message's bytes.
func body(m rows.Message) []byte {
	defer m.Release()
	return append(bytes.Clone(m.Header), bytes.Join(m.Body, nil)...)
}

// walkOf is the walk over runs, which a message may end after each 100 rows.
func walkOf(runs []rows.Run) Walk {
	return func(most int) (some []rows.Run, ends []int, last bool) {
		n := 0
		for n < most && len(runs) > 0 {
			some = append(some, runs[0])
			n += int(runs[0].Rows)
			runs = runs[1:]
		}
		return some, []int{n}, len(runs) == 0
	}
}

// randomRuns is a random permutation of the rows in clumps.
func randomRuns(r *rand.Rand, n, clump int) (runs []rows.Run) {
	for _, c := range r.Perm((n + clump - 1) / clump) {
		runs = append(runs, rows.Run{First: uint64(c * clump), Rows: uint64(min(clump, n-c*clump))})
	}
	return runs
}

// read compares the rows that a stream of the sweep yields with those of the table in memory, and returns the number of parts.
func (tb *table) read(t testing.TB, st *Stream, runs []rows.Run) (parts int) {
	t.Helper()
	for {
		p, err := st.Next(t.Context())
		if err != nil {
			t.Errorf("Next: %v", err)
			return parts
		}
		if p == nil {
			break
		}
		parts++
		for mine := p.Runs; len(mine) > 0; {
			n := 0
			for _, q := range mine {
				n += int(q.Rows)
			}
			n = min(n, 100)
			got, left, err := p.Rows.Gather(tb.layout.All(), mine, n, 1<<20)
			if err != nil {
				t.Errorf("Gather: %v", err)
				return parts
			}
			want, rest, err := tb.plain.Gather(tb.layout.All(), runs, got.Rows, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(body(got), body(want)) {
				t.Errorf("%d rows of part %d differ", got.Rows, parts)
				return parts
			}
			mine, runs = left, rest
			st.Extend()
		}
		p.Release()
	}
	if len(runs) > 0 {
		t.Errorf("%d runs are missing", len(runs))
	}
	return parts
}

// TestStreamsGetTheirRows compares the rows of streams of several orders at once with those of a table in memory, with a fifth of its memory.
func TestStreamsGetTheirRows(t *testing.T) {
	r := seedtest.New(t)
	tb := newTable(t, r, 8, 4000, 6<<20)
	s := New(tb.stored, tb.budget, 3<<20, 1<<20, false)
	defer s.Close()
	var readers sync.WaitGroup
	for _, clump := range []int{1, 1, 7, 500} {
		runs := randomRuns(r, int(tb.plain.Len()), clump)
		readers.Go(func() {
			st := s.Open("", walkOf(slices.Clone(runs)))
			defer st.Close()
			if parts := tb.read(t, st, runs); parts < 2 {
				t.Errorf("clump %d: %d parts, want several", clump, parts)
			}
		})
	}
	readers.Wait()
	t.Logf("%d bytes of rows, budget's peak %d, chunks passed %d of %d", tb.plain.Bytes(), tb.budget.Peak(), s.travelled, tb.stored.Chunks().Len())
}

// TestRevolutionsServeAllParts checks how often the chunks are passed in an epoch: once for as many parts as are planned to be incomplete.
func TestRevolutionsServeAllParts(t *testing.T) {
	if testing.Short() {
		t.Skip("make nightly runs it")
	}
	for _, test := range []struct{ pinned, memory float64 }{{0, 0.5}, {0.7, 0.2}} {
		t.Run(fmt.Sprintf("pinned %g, memory %g", test.pinned, test.memory), func(t *testing.T) {
			r := rand.New(rand.NewPCG(2, 49))
			tb := newTableOf(t, r, 8, 4096, 1<<30, tokens)
			if err := tb.stored.Chunks().Pin(t.Context(), int64(test.pinned*float64(tb.stored.Stored().Bytes))); err != nil {
				t.Fatal(err)
			}
			s := New(tb.stored, tb.budget, int64(test.memory*float64(tb.stored.Bytes())), 1<<20, false)
			defer s.Close()
			runs := randomRuns(r, int(tb.plain.Len()), 1)
			planned, _ := s.partsLocked()
			for epoch := range 3 {
				before := s.travelled
				st := s.Open(fmt.Sprint(epoch), walkOf(slices.Clone(runs)))
				st.Then(fmt.Sprint(epoch+1), walkOf(slices.Clone(runs)))
				parts := tb.read(t, st, runs)
				st.Close()
				revolutions, want := float64(s.travelled-before)/float64(s.unpinned()), float64(parts)/float64(planned)
				t.Logf("%d parts of which %d at a time: %.2f revolutions, want %.2f", parts, planned, revolutions, want)
				if epoch > 0 && revolutions > 2*want { // the first one also begins
					t.Errorf("epoch %d: %.2f revolutions, want about %.2f", epoch, revolutions, want)
				}
			}
		})
	}
}

// TestTheNextEpochIsBegun checks that parts of the stream that follows are begun before it is opened, and are its own.
func TestTheNextEpochIsBegun(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 49))
	tb := newTable(t, r, 8, 2000, 6<<20)
	s := New(tb.stored, tb.budget, 3<<20, 1<<20, false)
	defer s.Close()
	epochs := [][]rows.Run{}
	for range 4 {
		epochs = append(epochs, randomRuns(r, int(tb.plain.Len()), 1))
	}
	chunks := int64(tb.stored.Chunks().Len())
	for i, runs := range epochs {
		before := s.travelled
		st := s.Open(fmt.Sprint(i), walkOf(slices.Clone(runs)))
		if i+1 < len(epochs) {
			st.Then(fmt.Sprint(i+1), walkOf(slices.Clone(epochs[i+1])))
		}
		tb.read(t, st, runs)
		st.Close()
		t.Logf("epoch %d: the chunks passed %.2f times", i, float64(s.travelled-before)/float64(chunks))
	}
}
