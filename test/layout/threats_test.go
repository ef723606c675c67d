// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"regexp"
	"strings"
	"testing"
)

// threatTests are the tests in the last cell of a row of docs/security.md's threats: a file and a function each.
var threatTests = regexp.MustCompile("`(\\S+) (Test\\w+|test_\\w+)`")

// TestThreats checks that each row of the table of threats in docs/security.md names tests that exist.
func TestThreats(t *testing.T) {
	_, table, found := strings.Cut(readFile(t, "docs/security.md"), "| test |\n|---|---|---|---|\n")
	if !found {
		t.Fatal("docs/security.md has no table of threats")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		tests := threatTests.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(cells) != 4 || len(tests) == 0 {
			t.Errorf("docs/security.md: want four cells, the last one with tests, in %s", row)
		}
		for _, test := range tests {
			if source := readFile(t, test[1]); !strings.Contains(source, "func "+test[2]+"(") && !strings.Contains(source, "def "+test[2]+"(") {
				t.Errorf("docs/security.md names %s of %s, which is not there", test[2], test[1])
			}
		}
	}
	if len(rows) < 20 {
		t.Errorf("found %d threats, want at least 20: is the pattern right?", len(rows))
	}
}
