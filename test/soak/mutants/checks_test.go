// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package mutants

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
}

// TestChecks builds the test that detects a deliberate bug with that bug, and runs it: it must fail. MUTANTS and MUTANTS_FIRST are those of TestMutants.
func TestChecks(t *testing.T) {
	count, first := min(int(number(t, "MUTANTS", 1)), len(checks)), int(number(t, "MUTANTS_FIRST", 1))
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
			run := exec.CommandContext(t.Context(), program, "-test.run", "^"+name+"$", "-test.timeout", "5m")
			run.Dir = filepath.Join(root, folder)
			if output, err := run.CombinedOutput(); err == nil {
				t.Errorf("%s did not detect it:\n%s", c.by, output)
			}
		})
	}
}
