// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package mutants

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// checks are deliberate bugs in checks of what comes from outside, each with the package and the test that detects it.
var checks = []struct{ name, file, old, new, by string }{
	{
		"offsets are subtracted", "cacheserver/rows/check.go",
		"if offsets[i] < offsets[i-1] {", "if offsets[i]-offsets[i-1] < 0 {", "./cacheserver/rows TestForeignNumbers",
	},
	{
		"a map may have null keys", "cacheserver/rows/foreign.go",
		"(kids[0].NullN() > 0 || kids[0].Children()[0].NullN() > 0)", "kids[0].NullN() > 0", "./cacheserver/rows TestForeignNumbers",
	},
	{
		"a panic keeps the memory of a part", "cacheserver/node/stage/receive.go",
		"		default:\n			in.builder.Discard()\n", "		default:\n", "./cacheserver/node/stage TestNothingStaysOfAPanic",
	},
	{
		"names of parents are not counted", "cacheserver/protocol/exchange/columns.go",
		"in.path += int64(length) + 1", "in.path = int64(length) + 1", "./cacheserver/put/incoming TestSharedStrings",
	},
	{
		"each text of a schema is counted alone", "cacheserver/protocol/exchange/columns.go",
		"if bytes > mostText-s.Text {", "if bytes > mostText {", "./cacheserver/put/incoming TestSharedStrings",
	},
	{
		"answers about parts are not reserved", "cacheserver/head/puts/actions.go",
		"int64(parts)*statusMemory", "0*int64(parts)*statusMemory", "./cacheserver/head/puts TestAnswersAboutParts",
	},
	{
		"parts are not counted", "cacheserver/node/stage/stage.go",
		"ReserveHeap(partMemory); err != nil", "ReserveHeap(0); err != nil", "./cacheserver/node/stage TestMemoryOfParts",
	},
	{
		"records of parts are not counted", "cacheserver/put/put.go",
		"return p.Memory + int64(parts)*partMemory", "return p.Memory", "./cacheserver/put TestMemory",
	},
	{
		"a writer may have all puts", "cacheserver/put/catalog.go",
		"own >= mostOfWriter", "own >= mostPuts", "./cacheserver/put TestOneWriterHasNotAllPuts",
	},
	{
		"what is no file is read", "internal/reload/reload.go",
		"if !info.Mode().IsRegular() {", "if false {", "./internal/reload TestPathOfSomethingElse",
	},
	{
		"parts are taken without a right", "cacheserver/node/stage/receive.go",
		"if err := guard.Put(stream.Context(), ticket.Writer); err != nil {", "if err := guard.Put(stream.Context(), ticket.Writer); false {", "./cacheserver/node/stage TestTicketsAreOfWriters",
	},
	{
		"parts go on after the right has ended", "cacheserver/node/stage/receive.go",
		"if guard.Put(stream.Context(), ticket.Writer) != nil {", "if false {", "./cacheserver/node/stage TestPartsEndWithTheRight",
	},
	{
		"who may read may put", "cacheserver/access/guard.go",
		"\treturn g.mayWrite(ctx, who)\n}\n\n// Permits", "\treturn nil\n}\n\n// Permits", "./cacheserver/node/stage TestTicketsAreOfWriters",
	},
	{
		"a connection reserves all of its memory at once", "cacheserver/transport/h2/conn.go",
		"return c.reserve(memory - c.memory)", "return nil", "./cacheserver/transport/h2 TestMemoryOfANewcomer",
	},
	{
		"shared memory is never taken back", "cacheserver/transport/shared/shared.go",
		"\tclients.OnShortage(s.takeBack)\n", "", "./cacheserver/transport/shared TestIdleMemoryIsTakenBack",
	},
	{
		"all idle shared memory is taken back", "cacheserver/transport/shared/shared.go",
		"if freed >= n {", "if false {", "./cacheserver/transport/shared TestIdleMemoryIsTakenBack",
	},
	{
		"a spill file is valid anywhere", "cacheserver/spill/spill.go",
		"return fmt.Errorf(\"written as %s\", has)", "return nil", "./cacheserver/spill TestFilesAreBoundToTheirPlace",
	},
	{
		"a spill file of an older release is valid anywhere", "cacheserver/spill/spill.go",
		"case has == want || has == \"\" && d.unplaced:", "case has == want || has == \"\":", "./cacheserver/spill TestFilesAreBoundToTheirPlace",
	},
	{
		"links in place of spill files are followed", "cacheserver/spill/spill.go",
		"unix.O_NOFOLLOW | unix.O_NONBLOCK", "unix.O_NONBLOCK", "./cacheserver/spill TestForeignFiles",
	},
	{
		"the length of a spill file's head is not checked", "cacheserver/spill/spill.go",
		"if length > uint64(info.Size()) {", "if false {", "./cacheserver/spill TestBrokenHeads",
	},
	{
		"a note is valid anywhere", "cacheserver/spill/note.go",
		"xxh3.Hash128Seed(text, xxh3.HashString(place))", "xxh3.Hash128(text)", "./cacheserver/spill TestNotes",
	},
	{
		"the record of another put is taken", "cacheserver/node/stage/disk.go",
		"r.Put.ID != id || r.Put.Parts < 1", "r.Put.Parts < 1", "./cacheserver/node/stage TestRecordOfAnotherPut",
	},
	{
		"memory that is set aside is freed at once", "cacheserver/node/load/limiter.go",
		"if w.asides--; w.asides == 0 {", "if w.asides--; true {", "./cacheserver/node/load TestSetAside",
	},
	{
		"what is set aside is reserved twice", "cacheserver/offheap/budget.go",
		"max(used+n-b.paid, 0) - max(used-b.paid, 0)", "n", "./cacheserver/offheap TestPrepaid",
	},
	{
		"the object cache follows links", "objectcache/store/changes.go",
		"os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK", "os.O_APPEND|unix.O_NONBLOCK", "./objectcache/store TestForeignLog",
	},
	{
		"there is a place for every silent connection", "cacheserver/transport/h2/newcomers.go",
		"max(n.memory.Free()/n.each, leastPlaces)", "max(n.memory.Free()*0+1<<40, leastPlaces)", "./cacheserver/transport/h2 TestOldestNewcomerGivesWay",
	},
	{
		"the oldest newcomer keeps its place", "cacheserver/transport/h2/newcomers.go",
		"		n.all = slices.Delete(n.all, i, i+1)\n	}\n	one", "	}\n	one", "./cacheserver/transport/h2 TestOldestNewcomerGivesWay",
	},
	{
		"a newcomer whose bytes the server has not read gives way", "cacheserver/transport/h2/newcomers.go",
		" && !hasUnread(o.Conn)", "", "./cacheserver/transport/h2 TestSlowServerKeepsNewcomers",
	},
	{
		"a newcomer that the server does not wait for gives way", "cacheserver/transport/h2/newcomers.go",
		"o.reading.Load() && !hasUnread", "!hasUnread", "./cacheserver/transport/h2 TestSlowServerKeepsNewcomers",
	},
	{
		"a catalog may lead anywhere", "cacheserver/source/iceberg/catalog.go",
		"Base: l.transport, Only: l.servers", "Base: l.transport", "./cacheserver/source/iceberg TestCatalogCredentialsStay",
	},
	{
		"a catalog that stalls is waited for", "cacheserver/source/iceberg/catalog.go",
		"RoundTrip(r.WithContext(ctx))", "RoundTrip(r)", "./cacheserver/source/iceberg TestCatalogThatStalls",
	},
	{
		"a stalled answer is no outage", "cacheserver/objstore/retry.go",
		" || errors.Is(err, errStalled)\n}", "\n}", "./cacheserver/source/iceberg TestCatalogThatStalls",
	},
	{
		"http and https are one origin", "internal/origin/origin.go",
		"a.Scheme == b.Scheme && ", "", "./internal/origin TestSame",
	},
	{
		"all ports are one origin", "internal/origin/origin.go",
		" && port(a) == port(b)", "", "./internal/origin TestSame",
	},
	{
		"answers are read without a limit", "cacheserver/objstore/transport.go",
		"bounded{c.Transport}.RoundTrip(req)", "c.Transport.RoundTrip(req)", "./cacheserver/objstore TestAnswersAreBounded",
	},
	{
		"a list may begin anew for ever", "cacheserver/objstore/list.go",
		"p.next == token", "p.next == \"-\"", "./cacheserver/objstore TestRepeatedPage",
	},
	{
		"a hub may lead to plain text", "cacheserver/objstore/hub.go",
		"IsDowngrade(resp.Request.URL, next)", "IsDowngrade(next, next)", "./cacheserver/objstore TestHubInPlainText",
	},
	{
		"a mirror may lead to plain text", "objectcache/mirror/upstream/upstream.go",
		"IsDowngrade(from, r.URL)", "IsDowngrade(r.URL, from)", "./objectcache/mirror/upstream TestDowngrades",
	},
	{
		"a registry's token server may be in plain text", "objectcache/mirror/oci/tokens.go",
		"IsDowngrade(at, u)", "IsDowngrade(u, at)", "./objectcache/mirror/oci TestRealmInPlainText",
	},
	{
		"a schema may have more columns than its root says", "cacheserver/source/parquet/thrift.go",
		"if len(open) == 0 {\n", "if len(open) == 0 && false {\n", "./cacheserver/source/parquet TestSchemas",
	},
	{
		"the children of a schema's group are not compared with its elements", "cacheserver/source/parquet/thrift.go",
		"children < 0 || int(children) > len(elements)-1-i", "children < 0", "./cacheserver/source/parquet TestSchemas",
	},
	{
		"a schema may be nested at any depth", "cacheserver/source/parquet/thrift.go",
		"len(open) > mostLevels", "len(open) > 2*mostLevels", "./cacheserver/source/parquet TestSchemas",
	},
	{
		"a footer's lists may be of any length", "cacheserver/source/parquet/thrift.go",
		"items > mostItems", "items > 100*mostItems", "./cacheserver/source/parquet TestSchemas",
	},
	{
		"a row group may lack column chunks", "cacheserver/source/parquet/footer.go",
		"len(group.Columns) != n {", "len(group.Columns) > n {", "./cacheserver/source/parquet TestColumnChunksAreComplete",
	},
	{
		"rows of row groups are added without a look", "cacheserver/source/parquet/footer.go",
		"rows > math.MaxInt64-total", "total > math.MaxInt64-0", "./cacheserver/source/parquet TestColumnChunksAreComplete",
	},
	{
		"decimals may have more digits behind the point than digits", "cacheserver/source/parquet/columns.go",
		" || d.GetScale() > d.GetPrecision()", "", "./cacheserver/source/parquet TestDecimalsArePossible",
	},
	{
		"pages are not reserved", "cacheserver/source/parquet/decode/pages.go",
		"\tif err := p.reserve(&pg, h.page.value[pageCompressed], size); err != nil {\n\t\treturn page{}, err\n\t}\n", "", "./cacheserver/source/parquet/decode TestRoomForPages",
	},
	{
		"lengths of levels are added before they are compared", "cacheserver/source/parquet/decode/pages.go",
		"reps <= room && defs >= 0 && defs <= room-reps", "defs >= 0 && reps+defs <= room", "./cacheserver/source/parquet/decode TestLevelLengths",
	},
	{
		"a page may have fewer values than the footer says", "cacheserver/source/parquet/decode/pages.go",
		"values != chunk.Values", "values > chunk.Values", "./cacheserver/source/parquet/decode TestVerify",
	},
	{
		"columns may be nested deeper than clients read", "cacheserver/source/scan/select.go",
		"> mostLevels {", "> 2*mostLevels {", "./cacheserver/source/scan TestDepth",
	},
	{
		"large pages are not counted in the budget", "cacheserver/node/load/limiter.go",
		"\tif more > 0 {\n\t\tif err := a.budget.Reserve(more)", "\tif false {\n\t\tif err := a.budget.Reserve(more)", "./cacheserver/node/load TestRoomForPages",
	},
}

// TestChecks builds the test that detects a deliberate bug with that bug, and runs it: it must fail. MUTANTS and MUTANTS_FIRST are those of TestMutants.
func TestChecks(t *testing.T) {
	count, first := min(int(number(t, "MUTANTS", seedtest.Cases[uint64](0, 1))), len(checks)), int(number(t, "MUTANTS_FIRST", 1))
	for _, c := range checks {
		if _, err := (mutant{c.name, c.file, c.old, c.new}).apply(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for i := range count {
		c := checks[(first+i)%len(checks)]
		t.Run(c.name, func(t *testing.T) {
			folder, name, _ := strings.Cut(c.by, " ")
			program, err := mutant{c.name, c.file, c.old, c.new}.build(t, folder)
			if err != nil {
				t.Fatal(err)
			}
			run := exec.CommandContext(t.Context(), program, "-test.run", "^"+name+"$", "-test.timeout", "2m")
			run.Dir = filepath.Join(root, folder)
			if output, err := run.CombinedOutput(); err == nil {
				t.Errorf("%s did not detect it:\n%s", c.by, output)
			}
		})
	}
}
