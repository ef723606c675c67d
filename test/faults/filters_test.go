// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/pick"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// manyRows is the number of rows of the table of numbers: enough for 32 cores to evaluate a filter over 128 Ki rows each.
const manyRows = 4 << 20

var (
	numbersOnce sync.Once
	numbersMade string // location of the table
)

// numbers starts a cache of a table with a column id of 0 to manyRows-1, on a data node with limited memory.
func numbers(t *testing.T, variables, headArgs []string) *cluster {
	t.Helper()
	numbersOnce.Do(func() {
		table := icetest.In(t, filepath.Join(filepath.Dir(binary), "numbers")).Create("t", 2, ice.NewSchema(0,
			ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64, Required: true}), icetest.RowGroup(manyRows/8))
		ids := array.NewInt64Builder(memory.DefaultAllocator)
		ids.AppendValues(between(0, manyRows), nil)
		table.AppendRecord(array.NewRecordBatch(table.ArrowSchema(), []arrow.Array{ids.NewArray()}, manyRows))
		numbersMade = table.Metadata()
	})
	if numbersMade == "" {
		t.Fatal("the table could not be made; see the test that tried first")
	}
	c := newCluster(t, &lake{t: t, location: numbersMade}, 1)
	c.variables, c.headArgs = append(variables, headMemory()), append(c.headArgs, headArgs...)
	c.nodeArgs = append(c.nodeArgs, "--memory-limit", strconv.Itoa(nodeLimit))
	c.startAll()
	c.await("Ready")
	return c
}

// selecting requests the rows for which a filter is true, for a job.
func selecting(filter, job string) *flight.FlightDescriptor {
	var cmd bytes.Buffer
	encoder := json.NewEncoder(&cmd)
	encoder.SetEscapeHTML(false) // "<" is one byte
	if err := encoder.Encode(map[string]any{"v": 1, "kind": "shard", "index": 0, "total": 1, "filter": filter, "job": job}); err != nil {
		panic(err) // strings can always be encoded
	}
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: cmd.Bytes()}
}

// selects asserts that a filter is true for a number of rows. It asks again while it is being evaluated.
func (c *cluster) selects(filter, job string, rows int64) {
	c.t.Helper()
	ctx := deadline.Context(c.t)
	info, err := c.info(ctx, selecting(filter, job))
	for status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "indexing filter") {
		info, err = c.info(ctx, selecting(filter, job))
	}
	if err != nil || info.GetTotalRecords() != rows {
		c.t.Fatalf("%.40s: %d rows, %v: want %d", filter, info.GetTotalRecords(), err, rows)
	}
}

// nested is a filter of parentheses within parentheses that is true for all rows but id 0.
func nested(levels int) string {
	filter := "id > 0"
	for level := range levels {
		filter = fmt.Sprintf("(id>%d OR (id<%d AND %s))", manyRows+level, 2*manyRows-level, filter)
	}
	return filter
}

// TestNestedFilterIsWithinMemory evaluates a filter of 99 ANDs and ORs within each other. Before filters were evaluated in blocks, each core
// kept an array of 128 KiB for each level.
func TestNestedFilterIsWithinMemory(t *testing.T) {
	for _, cores := range []string{"2", "16", "128"} {
		t.Run(cores+" cores", func(t *testing.T) {
			t.Parallel()
			c := numbers(t, []string{"GOMAXPROCS=" + cores}, nil)
			c.selects(nested(99), "nested", manyRows-1)
			c.within()
		})
	}
}

// comparisons is a filter of n different comparisons, which is true for 2000 rows.
func comparisons(n int) string {
	terms := []string{"id < 2000"}
	for i := range n - 1 {
		terms = append(terms, fmt.Sprint("id < -", i))
	}
	return strings.Join(terms, " OR ")
}

// cpu returns the seconds of processor time that the process has used.
func (p *process) cpu() float64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.server.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	fields := strings.Fields(string(text)[strings.LastIndex(string(text), ")")+1:])
	ticks := 0
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.Atoi(field)
		if err != nil {
			p.t.Fatal(err)
		}
		ticks += n
	}
	return float64(ticks) / 100
}

// computes waits until the process has used that many more seconds of processor time.
func (p *process) computes(seconds float64) {
	p.t.Helper()
	before := p.cpu()
	deadline.Eventually(p.t, func() error {
		if used := p.cpu() - before; used < seconds {
			return fmt.Errorf("%s has used %.2f s of processor time, want %.2f", p.name, used, seconds)
		}
		return nil
	})
}

// TestLargeFilterLetsOthersPass evaluates small filters while a client has several large ones evaluated, and checks that the data node stops
// when that client leaves.
func TestLargeFilterLetsOthersPass(t *testing.T) {
	t.Parallel()
	c := numbers(t, nil, nil)
	ctx, leave := context.WithCancel(deadline.Context(t))
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			if _, err := c.info(ctx, selecting(comparisons(3500+i), "large")); ctx.Err() == nil {
				t.Errorf("the large filter ended in %v before the small ones", err)
			}
		})
	}
	c.nodes[0].computes(0.5)
	for i, job := range []string{"small", "large"} {
		c.selects(fmt.Sprintf("id < %d", 100+i), job, int64(100+i))
	}
	leave()
	clients.Wait()
	deadline.Eventually(t, func() error {
		if bytes := c.nodes[0].metric("datacache_filter_bytes"); bytes >= float64(pick.MaxBytes(manyRows)) {
			return fmt.Errorf("after the client left, %.0f bytes are reserved for filters that are being evaluated", bytes)
		}
		return nil
	})
	if made := c.nodes[0].metric("datacache_filter_indexes"); made != 2 {
		t.Errorf("the data node has evaluated %.0f filters, want only the two small ones", made)
	}
	c.within()
}

// TestEqualitiesAreOneLookup evaluates 4900 equalities joined by OR, which cost as much as IN with as many values.
func TestEqualitiesAreOneLookup(t *testing.T) {
	t.Parallel()
	c := numbers(t, nil, []string{"--filter-comparisons", strconv.Itoa(2 * manyRows)})
	terms := make([]string, 4900)
	for i := range terms {
		terms[i] = fmt.Sprint("id=", 2*i)
	}
	c.selects(strings.Join(terms, " OR "), "many", 4900)
	_, err := c.info(deadline.Context(t), selecting(comparisons(3), "many"))
	wantStatus(t, err, codes.InvalidArgument, "3 comparisons for each of the 4194304 rows of a data node, 1.26e+07 in all, are more than the 8.39e+06 of --filter-comparisons")
}

// TestManyLongFilters has 60 clients ask for filters of 50 KB at once.
func TestManyLongFilters(t *testing.T) {
	t.Parallel()
	c := numbers(t, []string{"GOMAXPROCS=16"}, nil)
	ctx, leave := context.WithCancel(deadline.Context(t))
	var clients sync.WaitGroup
	for i := range many(t, 60) {
		clients.Go(func() { _, _ = c.info(ctx, selecting(comparisons(3500+i%100), fmt.Sprint("job-", i))) })
	}
	c.nodes[0].computes(2)
	c.selects("id < 7", "small", 7)
	leave()
	clients.Wait()
	c.within()
}
