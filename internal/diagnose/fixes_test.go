// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFixes checks that every reason of docs/troubleshoot.md that needs more than time has a fix.
func TestFixes(t *testing.T) {
	text, err := os.ReadFile("../../docs/troubleshoot.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| reason | cause | fix |")
	if !found {
		t.Fatal("docs/troubleshoot.md has no table of reasons")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	reason := regexp.MustCompile("`([A-Z][A-Za-z]+)`")
	seen := 0
	for row := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(row, " | ")
		for _, name := range reason.FindAllStringSubmatch(cells[0], -1) {
			seen++
			if _, ok := fixes[name[1]]; !ok && !slices.Contains([]string{"PodsStarting", "Planning", "Loading"}, name[1]) {
				t.Errorf("reason %s has no fix", name[1])
			}
		}
	}
	if seen < 10 {
		t.Errorf("the table has %d reasons, want at least 10", seen)
	}
}
