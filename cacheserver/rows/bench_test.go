// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// tableBench is a table similar to those of the project's benchmarks.
type tableBench struct {
	name  string
	batch arrow.RecordBatch
	bytes int64 // bytes of a row
}

func benchTables(b *testing.B) []tableBench {
	b.Helper()
	return []tableBench{
		{"tokens", tokensBatch(b, 8192, 512, 0), 512*4 + 8},
		{"tokens16", tokensBatch(b, 8192, 512, 50_000), 512*4 + 8},
		{"tabular", tabularBatch(b, 131072, 63, 63, 63, 63), 72 + 24},
		{"tabular45", tabularBatch(b, 131072, 16, 10, 40, 31), 72 + 24},
		{"images", imagesBatch(b, 1024, 20<<10), 20<<10 + 8},
	}
}

// tokensBatch has lists of numbers below most; 0: of 31 bits.
func tokensBatch(b *testing.B, rows, length int, most int32) arrow.RecordBatch {
	b.Helper()
	if most == 0 {
		most = math.MaxInt32
	}
	r := rand.New(rand.NewPCG(1, 2))
	s := arrow.NewSchema([]arrow.Field{
		{Name: "tokens", Type: arrow.ListOfField(arrow.Field{Name: "element", Type: arrow.PrimitiveTypes.Int32, Nullable: true}), Nullable: true},
		{Name: "label", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	}, nil)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, s)
	list, label := rb.Field(0).(*array.ListBuilder), rb.Field(1).(*array.Int64Builder)
	values := list.ValueBuilder().(*array.Int32Builder)
	for i := range rows {
		list.Append(true)
		for range length {
			values.Append(r.Int32N(most))
		}
		label.Append(int64(i))
	}
	return rb.NewRecordBatch()
}

// tabularBatch has four integers of some bits.
func tabularBatch(b *testing.B, rows int, bits ...int) arrow.RecordBatch {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	var fields []arrow.Field
	for i := range 8 {
		fields = append(fields, nullable(fmt.Sprint("n", i), []arrow.DataType{arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Float64}[i/4]))
	}
	fields = append(fields, arrow.Field{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true})
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	for range rows {
		for i := range 4 {
			rb.Field(i).(*array.Int64Builder).Append(r.Int64() >> (63 - bits[i]))
			rb.Field(i + 4).(*array.Float64Builder).Append(r.Float64())
		}
		rb.Field(8).(*array.StringBuilder).Append(fmt.Sprintf("%020d", r.Uint64()))
	}
	return rb.NewRecordBatch()
}

func floatsBatch(b *testing.B, rows int) arrow.RecordBatch {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	fields := make([]arrow.Field, 16)
	for i := range fields {
		fields[i] = nullable(fmt.Sprint("f", i), arrow.PrimitiveTypes.Float32)
	}
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	for range rows {
		for i := range fields {
			rb.Field(i).(*array.Float32Builder).Append(r.Float32())
		}
	}
	return rb.NewRecordBatch()
}

func imagesBatch(b *testing.B, rows, size int) arrow.RecordBatch {
	b.Helper()
	s := arrow.NewSchema([]arrow.Field{
		{Name: "image", Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: "label", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	}, nil)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, s)
	image := make([]byte, size)
	for i := range rows {
		image[i%size]++
		rb.Field(0).(*array.BinaryBuilder).Append(image)
		rb.Field(1).(*array.Int32Builder).Append(int32(i))
	}
	return rb.NewRecordBatch()
}

// loadBytes builds rows with a total of about total bytes.
func loadBytes(b *testing.B, batch arrow.RecordBatch, total, rowBytes int64) store {
	b.Helper()
	batches := make([]arrow.RecordBatch, max(1, total/(rowBytes*batch.NumRows())))
	for i := range batches {
		batches[i] = batch
	}
	return load(b, batch.Schema(), 0, batches...)
}

func BenchmarkBuilder(b *testing.B) {
	for _, tb := range benchTables(b) {
		b.Run(tb.name, func(b *testing.B) {
			l, err := NewLayout(tb.batch.Schema())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			report := byCPU(b)
			b.SetBytes(8 * tb.batch.NumRows() * tb.bytes)
			defer func() { report(int64(b.N) * 8 * tb.batch.NumRows() * tb.bytes) }()
			for b.Loop() {
				a := offheap.NewArena(offheap.NewBudget(1 << 40))
				builder := NewBuilder(l, a, 0)
				for range 8 {
					if err := builder.Append(tb.batch, nil); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := builder.Finish(); err != nil {
					b.Fatal(err)
				}
				a.Release()
			}
		})
	}
}

func BenchmarkRange(b *testing.B) {
	for _, tb := range benchTables(b) {
		st := loadBytes(b, tb.batch, 512<<20, tb.bytes)
		some, err := st.layout.Project([]int{1})
		if err != nil {
			b.Fatal(err)
		}
		for name, p := range map[string]*Projection{"all": st.layout.All(), "second": some} {
			b.Run(tb.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				messages := 0
				for b.Loop() {
					for m, err := range st.rows.Range(p, 0, st.rows.Len()) {
						if err != nil {
							b.Fatal(err)
						}
						messages++
						m.Release()
					}
				}
				b.ReportMetric(float64(messages)/b.Elapsed().Seconds(), "messages/s")
			})
		}
	}
}

// BenchmarkGather picks clumps of rows of a single value from 256 MiB, much more than fits in CPU caches; "copy" is Range with every
// body copied to one buffer, the reference for Gather.
func BenchmarkGather(b *testing.B) {
	for _, size := range []int{64, 256, 2 << 10, 20 << 10} {
		kinds := map[string]arrow.RecordBatch{
			"binary": imagesBatch(b, max(1024, 8<<20/size), size),
			"list":   tokensBatch(b, max(512, 8<<20/size), size/4, 0),
			"list16": tokensBatch(b, max(512, 8<<20/size), size/4, 50_000),
		}
		for kind, batch := range kinds {
			st := loadBytes(b, batch, 256<<20, int64(size))
			name := fmt.Sprintf("%s/%dB", kind, size)
			b.Run(name+"/copy", func(b *testing.B) { benchCopy(b, st) })
			for _, clump := range []int{1, 64} {
				b.Run(fmt.Sprintf("%s/clump%d", name, clump), func(b *testing.B) { benchGather(b, st, clump) })
			}
		}
	}
	for name, batch := range map[string]arrow.RecordBatch{"tabular": tabularBatch(b, 131072, 63, 63, 63, 63), "tabular45": tabularBatch(b, 131072, 16, 10, 40, 31), "floats": floatsBatch(b, 131072)} {
		st := loadBytes(b, batch, 256<<20, 96)
		b.Run(name+"/copy", func(b *testing.B) { benchCopy(b, st) })
		for _, clump := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/clump%d", name, clump), func(b *testing.B) { benchGather(b, st, clump) })
		}
	}
}

// byCPU reports bytes per second of the process's CPU time, which other load on the machine affects less than wall time.
func byCPU(b *testing.B) (report func(bytes int64)) {
	seconds := func() float64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	before := seconds()
	return func(bytes int64) {
		b.ReportMetric(float64(bytes)/1e9/(seconds()-before), "GB/cpu-s")
	}
}

func benchCopy(b *testing.B, st store) {
	report := byCPU(b)
	defer func() { report(int64(b.N) * st.rows.Bytes()) }()
	buf := make([]byte, 2*TargetBytes)
	for b.Loop() {
		for m, err := range st.rows.Range(st.layout.All(), 0, st.rows.Len()) {
			if err != nil {
				b.Fatal(err)
			}
			at := 0
			for _, s := range m.Body {
				at += copy(buf[at:], s)
			}
			m.Release()
		}
		b.SetBytes(st.rows.Bytes())
	}
}

func benchGather(b *testing.B, st store, clump int) {
	r := rand.New(rand.NewPCG(7, 7))
	runs := make([]Run, 1<<20/clump)
	for i := range runs {
		runs[i] = Run{First: r.Uint64N(uint64(st.rows.Len()) - uint64(clump)), Rows: uint64(clump)}
	}
	b.ReportAllocs()
	report := byCPU(b)
	bytes, count := 0, 0
	left := slices.Clone(runs)
	for b.Loop() {
		m, rest, err := st.rows.Gather(st.layout.All(), left, 1<<16, TargetBytes)
		if err != nil {
			b.Fatal(err)
		}
		bytes, count = bytes+m.BodyLen, count+m.Rows
		m.Release()
		if left = rest; (len(left)-1)*clump < 1<<16 {
			left = slices.Clone(runs)
		}
	}
	report(int64(bytes))
	b.SetBytes(int64(bytes / b.N))
	b.ReportMetric(float64(count)/b.Elapsed().Seconds()/1e6, "Mrows/s")
}
