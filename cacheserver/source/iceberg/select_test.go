// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

func TestSnapshots(t *testing.T) {
	made, states := icetest.Local(t).History("t", 2)
	before := func(s icetest.Snapshot) *time.Time { return new(s.Time.Add(-time.Millisecond)) }
	tests := map[string]struct {
		sel  Selection
		want int
	}{
		"current":          {Selection{}, 2},
		"main":             {Selection{Ref: "main"}, 2},
		"by id":            {Selection{SnapshotID: &states[0].ID}, 0},
		"by id, second":    {Selection{SnapshotID: &states[1].ID}, 1},
		"by id, current":   {Selection{SnapshotID: &states[2].ID}, 2},
		"tag":              {Selection{Ref: "first"}, 0},
		"as of its time":   {Selection{AsOf: &states[1].Time}, 1},
		"just before":      {Selection{AsOf: before(states[1])}, 0},
		"as of now":        {Selection{AsOf: new(time.Now())}, 2},
		"before the third": {Selection{AsOf: before(states[2])}, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tbl := openTable(t, made.Metadata(), tt.sel)
			check(t, tbl, states[tt.want].Rows)
			if pin := tbl.Pin(); !pin.HasSnapshot || pin.SnapshotID != states[tt.want].ID {
				t.Errorf("pinned %+v, want snapshot %d", pin, states[tt.want].ID)
			}
		})
	}
	t.Run("a branch has the current schema", func(t *testing.T) {
		want := make([]string, 0, len(states[1].Rows))
		for _, row := range states[1].Rows {
			want = append(want, strings.Replace(row, `"text":`, `"words":`, 1))
		}
		check(t, openTable(t, made.Metadata(), Selection{Ref: "side"}), want)
	})
}

func TestColumns(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 2, 50, 16)
	for name, columns := range map[string][]string{
		"one":            {"category"},
		"in table order": {"id", "text"},
		"in other order": {"text", "id"},
	} {
		t.Run(name, func(t *testing.T) {
			tbl := openTable(t, made.Metadata(), Selection{Columns: columns})
			check(t, tbl, made.RowsOf(columns))
		})
	}
	whole, one := planOf(t, openTable(t, made.Metadata(), Selection{})), planOf(t, openTable(t, made.Metadata(), Selection{Columns: []string{"id"}}))
	if one[0].Bytes >= whole[0].Bytes/2 {
		t.Errorf("one column weighs %d bytes, all weigh %d", one[0].Bytes, whole[0].Bytes)
	}
}

func TestFilesWithoutTheColumns(t *testing.T) {
	made := icetest.Local(t).Evolved("t", 2)
	tbl := openTable(t, made.Metadata(), Selection{Columns: []string{"added"}})
	check(t, tbl, made.RowsOf([]string{"added"}))
}

func TestFilters(t *testing.T) {
	tables := map[string]*icetest.Table{}
	w := icetest.Local(t)
	tables["plain"] = w.Plain("plain", 2, 2, 100, 25)
	tables["partitions"] = w.ByCategory("partitions", 2)
	tables["deleted"] = w.Deleted("deleted", 3)
	tables["equal"] = w.EqualDeleted("equal", 2)
	id := func(r icetest.Row) int { return r["id"].(int) }
	is := func(r icetest.Row, category string) bool { return r["category"] == category }
	tests := map[string]func(icetest.Row) bool{
		"id = 77":                           func(r icetest.Row) bool { return id(r) == 77 },
		"id <> 77":                          func(r icetest.Row) bool { return id(r) != 77 },
		"id >= 90 AND id < 110":             func(r icetest.Row) bool { return id(r) >= 90 && id(r) < 110 },
		"id BETWEEN 20 AND 30":              func(r icetest.Row) bool { return id(r) >= 20 && id(r) <= 30 },
		"id IN (1, 99, 100, 5000)":          func(r icetest.Row) bool { return id(r) == 1 || id(r) == 99 || id(r) == 100 },
		"id < 0":                            func(icetest.Row) bool { return false },
		"category = 'b'":                    func(r icetest.Row) bool { return is(r, "b") },
		"category <> 'b'":                   func(r icetest.Row) bool { return r["category"] != nil && !is(r, "b") },
		"NOT category = 'b'":                func(r icetest.Row) bool { return r["category"] != nil && !is(r, "b") },
		"category NOT IN ('a', 'b')":        func(r icetest.Row) bool { return r["category"] != nil && !is(r, "a") && !is(r, "b") },
		"category IS NULL":                  func(r icetest.Row) bool { return r["category"] == nil },
		"category IS NOT NULL":              func(r icetest.Row) bool { return r["category"] != nil },
		"category IS NULL OR id = 1":        func(r icetest.Row) bool { return r["category"] == nil || id(r) == 1 },
		"category > 'c' OR id < 3":          func(r icetest.Row) bool { return is(r, "d") || is(r, "e") || id(r) < 3 },
		"text LIKE 'text of row 0001%'":     func(r icetest.Row) bool { return strings.HasPrefix(r["text"].(string), "text of row 0001") },
		"number > 20.0":                     func(r icetest.Row) bool { n, ok := r["number"].(float64); return ok && n > 20 },
		"number IS NULL AND category = 'a'": func(r icetest.Row) bool { return r["number"] == nil && is(r, "a") },
	}
	counted := map[string]int{}
	for table, made := range tables {
		for filter, keep := range tests {
			t.Run(table+" "+filter, func(t *testing.T) {
				for _, s := range check(t, openTable(t, made.Metadata(), Selection{Filter: filter}), made.Where(keep)) {
					if s.Exact {
						counted[table]++
					}
				}
			})
		}
	}
	if min(counted["plain"], counted["partitions"], counted["deleted"]) < 10 {
		t.Errorf("statistics prove the filters for so many splits: %v, want dozens", counted)
	}
}

// TestCountedDeletes counts the rows that deletes by position leave of splits, some of which are cut in the middle: as many as decoding gives.
func TestCountedDeletes(t *testing.T) {
	w := icetest.Local(t)
	tests := map[string]struct {
		table     *icetest.Table
		selection Selection
		counted   bool
	}{
		"positions":           {w.Deleted("positions", 2), Selection{}, true},
		"vectors":             {w.Deleted("vectors", 3), Selection{}, true},
		"a filter on all":     {w.Deleted("filtered", 3), Selection{Filter: "id >= 0 AND category IS NOT NULL OR id < 1000"}, true},
		"a filter on some":    {w.Deleted("some", 2), Selection{Filter: "category = 'a'"}, false},
		"values, not counted": {w.EqualDeleted("values", 2), Selection{}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			from := &Source{Store: newStore(), Location: Location{Metadata: tt.table.Metadata()}, Selection: tt.selection}
			plan, err := from.Plan(t.Context(), nil, &source.Planning{Cut: inThirds})
			if err != nil {
				t.Fatal(err)
			}
			counted, deleted := 0, int64(0)
			for _, s := range encoded(t, plan.Splits) {
				if s.Kept() >= 0 {
					counted, deleted = counted+1, deleted+s.Deleted
				}
			}
			if all := counted == len(plan.Splits); all != tt.counted || all && deleted != 39 {
				t.Errorf("%d of %d splits are counted with %d deleted rows, want all: %t", counted, len(plan.Splits), deleted, tt.counted)
			}
			readAll(t, openTable(t, tt.table.Metadata(), tt.selection), plan.Splits)
		})
	}
}

// inThirds cuts each split.
func inThirds(splits []source.Split) (parts []source.Split) {
	for _, s := range splits {
		third := s.Rows / 3
		for first := int64(0); first < s.Rows; first += third + 1 {
			parts = append(parts, s.Part(first, min(third+1, s.Rows-first), s.Bytes/3))
		}
	}
	return parts
}

func TestFilterOnOtherColumns(t *testing.T) {
	made := icetest.Local(t).Nested("t", 2)
	tbl := openTable(t, made.Metadata(), Selection{Columns: []string{"id"}, Filter: "point.deep.a > 40 AND point.x < 80"})
	var want []string
	for i := range 100 {
		if i%3 != 0 && i%2 != 0 && i > 40 && i < 80 {
			text, err := json.Marshal(map[string]int{"id": i})
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, string(text))
		}
	}
	check(t, tbl, want)
	if names := tbl.Schema().NumFields(); names != 1 {
		t.Errorf("%d columns are served, want 1", names)
	}
}

func TestPruning(t *testing.T) {
	w := icetest.Local(t)
	plain := w.Plain("plain", 2, 4, 100, 25)
	parts := w.ByCategory("parts", 2)
	primitives := w.Primitives("primitives", 2)
	tests := map[string]struct {
		table  *icetest.Table
		filter string
		splits int
	}{
		"file":             {plain, "id >= 300", 4},
		"row group":        {plain, "id = 130", 1},
		"row groups":       {plain, "id BETWEEN 20 AND 30", 2},
		"or":               {plain, "id = 0 OR id = 399", 2},
		"in":               {plain, "id IN (0, 399, 1000)", 2},
		"not in":           {plain, "id NOT IN (0)", 16},
		"prefix":           {plain, "text LIKE 'text of row 00001%'", 1},
		"nothing":          {plain, "text LIKE 'x%'", 0},
		"a null":           {plain, "id IS NULL", 0},
		"partition":        {parts, "category = 'c'", 4},
		"null partition":   {parts, "category IS NULL", 2},
		"and row group":    {parts, "category = 'c' AND id < 50", 1},
		"decimal":          {primitives, "decimal9 > 2500.0", 1},
		"double":           {primitives, "double <= -0.09", 1},
		"timestamptz":      {primitives, "timestamptz < TIMESTAMP '1970-01-01T00:00:00Z'", 1},
		"uuid: no pruning": {primitives, "uuid <> '00000000-0000-0000-0000-000000000000'", 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tbl := openTable(t, tt.table.Metadata(), Selection{Filter: tt.filter})
			if splits := planOf(t, tbl); len(splits) != tt.splits {
				t.Errorf("%s: %d splits, want %d", tt.filter, len(splits), tt.splits)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	w := icetest.Local(t)
	made, states := w.History("t", 2)
	fresh := w.NoSnapshot("fresh")
	tests := map[string]struct {
		src  Location
		sel  Selection
		want []string
	}{
		"no source":        {Location{}, Selection{}, []string{"no table named"}},
		"both sources":     {Location{Metadata: "a.metadata.json", CatalogURI: "http://c"}, Selection{}, []string{"one of the two"}},
		"no table":         {Location{CatalogURI: "http://c", Namespace: "n"}, Selection{}, []string{"table name missing"}},
		"empty level":      {Location{CatalogURI: "http://c", Namespace: "a..b", Table: "t"}, Selection{}, []string{"a..b", "empty level"}},
		"no such file":     {Location{Metadata: made.Metadata() + ".metadata.json"}, Selection{}, []string{made.Metadata() + ".metadata.json"}},
		"a directory":      {Location{Metadata: "/no/such/table"}, Selection{}, []string{"/no/such/table/metadata/NNNNN-<uuid>.metadata.json"}},
		"not metadata":     {Location{Metadata: "testdata/not.json"}, Selection{}, []string{"testdata/not.json", "must be an Iceberg metadata file"}},
		"snapshot 0":       {Location{}, Selection{SnapshotID: new(int64(0))}, []string{"snapshot 0", "no such snapshot", time.Now().UTC().Format("2006-01-")}},
		"unknown snapshot": {Location{}, Selection{SnapshotID: new(int64(5))}, []string{"snapshot 5"}},
		"unknown ref":      {Location{}, Selection{Ref: "nope"}, []string{"\"nope\"", `tag "first"`, `branch "side"`}},
		"too early":        {Location{}, Selection{AsOf: new(time.UnixMilli(0))}, []string{"1970-01-01T00:00:00Z", "had no snapshot then"}},
		"two selectors":    {Location{}, Selection{Ref: "first", SnapshotID: &states[0].ID}, []string{"at most one"}},
		"unknown column":   {Location{}, Selection{Columns: []string{"id", "nope"}}, []string{`"nope"`, `"words"`}},
		"column twice":     {Location{}, Selection{Columns: []string{"id", "id"}}, []string{`"id"`, "twice"}},
		"column case":      {Location{}, Selection{Columns: []string{"ID"}}, []string{`"ID"`}},
		"bad filter":       {Location{}, Selection{Filter: "id = = 3"}, []string{"filter", "id = = 3"}},
		"filter column":    {Location{}, Selection{Filter: "nope = 3"}, []string{"nope"}},
		"fresh, snapshot":  {Location{Metadata: fresh.Metadata()}, Selection{SnapshotID: new(int64(5))}, []string{"it has none"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.src.Metadata+tt.src.CatalogURI == "" && name != "no source" {
				tt.src.Metadata = made.Metadata()
			}
			_, err := Open(t.Context(), objstore.New(objstore.Config{}), tt.src, tt.sel)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

func TestVersionHint(t *testing.T) {
	dir := t.TempDir()
	made := icetest.In(t, dir).Plain("t", 2, 1, 10, 100)
	copyFile(t, made.Metadata(), dir+"/t/metadata/v7.metadata.json")
	writeFile(t, dir+"/t/metadata/version-hint.text", []byte("7\n"))
	for _, name := range []string{dir + "/t", dir + "/t/", dir + "/t/metadata"} {
		check(t, openTable(t, name, Selection{}), made.Rows())
	}
}

func TestPins(t *testing.T) {
	made, _ := icetest.Local(t).History("t", 2)
	store, src := objstore.New(objstore.Config{}), Location{Metadata: made.Metadata()}
	sel := Selection{Ref: "first", Columns: []string{"id"}}
	tbl, err := Open(t.Context(), store, src, sel)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(tbl.Pin())
	if err != nil {
		t.Fatal(err)
	}
	var pin Pin
	if err := json.Unmarshal(text, &pin); err != nil {
		t.Fatal(err)
	}
	again, err := OpenPinned(t.Context(), store, src, pin, sel)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(planOf(t, tbl), planOf(t, again)); diff != "" {
		t.Errorf("plans differ:\n%s", diff)
	}
	if _, err := OpenPinned(t.Context(), store, src, pin, Selection{}); err == nil || !strings.Contains(err.Error(), "start the cache anew") {
		t.Errorf("another snapshot under the same pin: %v", err)
	}
}
