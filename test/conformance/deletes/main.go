// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command deletes writes tables with row-level deletes for test_deletes.py: position deletes, deletion vectors, equality deletes, and
// several of them on one file. pyiceberg can't write these. `deletes DIR` writes the tables to the folder, and to standard output, as
// JSON, the expected content of each: the ids of its rows in the table's order.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/test/kit/icetest"
)

// seed determines the ids that are deleted.
const seed = 20261125

// A table's first rows: three commits of one file each, with several row groups. The rows are so wide that a data node stores them in
// several chunks of 4 MiB.
const (
	files     = 3
	fileRows  = 1000
	groupRows = 128
	width     = 8 << 10 // length of a text
)

func main() {
	w := icetest.In(failing{}, os.Args[1])
	made := map[string]*table{}
	for name, deletes := range map[string]struct {
		version int
		apply   func(*table)
	}{
		"positions": {2, func(t *table) { t.position(300); t.position(50) }},
		"vectors":   {3, func(t *table) { t.position(300); t.position(50) }},
		"equality":  {2, func(t *table) { t.equal(60); t.again(20); t.equal(10) }},
		"all":       {2, func(t *table) { t.position(200); t.equal(40); t.again(20); t.position(40); t.equal(5) }},
	} {
		t := &table{made: w.Create(name, deletes.version, icetest.PlainSchema(), icetest.RowGroup(groupRows)), random: rand.New(rand.NewPCG(seed, uint64(len(name))))}
		for file := range files {
			ids := make([]int64, fileRows)
			for i := range ids {
				ids[i] = int64(file*fileRows + i)
			}
			t.append(ids)
		}
		deletes.apply(t)
		t.Metadata = t.made.Metadata()
		made[name] = t
	}
	if err := json.NewEncoder(os.Stdout).Encode(made); err != nil {
		panic(err)
	}
}

// table is a table with the expected ids of its rows in order: the order of the commits that wrote them and, within a commit, of its
// rows.
type table struct {
	Metadata string  `json:"metadata"`
	IDs      []int64 `json:"ids"`

	made    *icetest.Table
	deleted []int64
	random  *rand.Rand
}

// some returns n random rows that have not been deleted.
func (t *table) some(n int) []int64 {
	ids := slices.Clone(t.IDs)
	t.random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids[:n]
}

// gone records that every row with one of the ids was deleted.
func (t *table) gone(ids []int64) {
	t.deleted = append(t.deleted, ids...)
	t.IDs = slices.DeleteFunc(t.IDs, func(id int64) bool { return slices.Contains(ids, id) })
}

// position deletes n rows, and all rows of a row group, by position: with delete files in format v2, with deletion vectors in v3.
func (t *table) position(n int) {
	const group = 2 * groupRows
	ids := t.some(n)
	for id := range int64(groupRows) {
		ids = append(ids, group+id)
	}
	t.made.Delete(ice.IsIn(ice.Reference("id"), ids...), func(r icetest.Row) bool { return slices.Contains(ids, int64(r["id"].(int))) })
	t.gone(ids)
}

// equal deletes n rows with an equality delete file of their ids, which also contains an id that no row has.
func (t *table) equal(n int) {
	ids := t.some(n)
	rows := []icetest.Row{{"id": -1}}
	for _, id := range ids {
		rows = append(rows, icetest.Row{"id": int(id)})
	}
	t.made.DeleteEqual([]string{"id"}, rows...)
	t.gone(ids)
}

// again appends n rows with ids that were deleted; earlier deletes do not apply to them.
func (t *table) again(n int) {
	t.append(t.deleted[:n])
	t.deleted = t.deleted[n:]
}

// append adds rows with the ids in one commit; the text of each row is derived from its id.
func (t *table) append(ids []int64) {
	var rows []icetest.Row
	for _, id := range ids {
		row := icetest.PlainRows(int(id), int(id)+1)[0]
		row["text"] = row["text"].(string) + strings.Repeat(string(rune('a'+id%26)), width)
		rows = append(rows, row)
	}
	t.made.Append(rows...)
	t.IDs = append(t.IDs, ids...)
}

// failing implements the part of testing.TB that icetest needs, for a program: a failure ends it.
type failing struct{ testing.TB }

func (failing) Helper() {}

func (failing) Context() context.Context { return context.Background() } //nolint:forbidigo // the context of the whole program

func (failing) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
