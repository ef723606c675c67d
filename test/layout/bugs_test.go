// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// named are the tests that a command of docs/bugs.md runs: after go test's -run, and after pytest's -k, which may be a whole file.
var named = regexp.MustCompile(`-run '?\^?(Test\w+|Fuzz\w+)|-k '?(test_\w+)`)

// TestBugs checks that each row of docs/bugs.md has a command whose tests exist.
func TestBugs(t *testing.T) {
	text := readFile(t, "docs/bugs.md")
	rows := 0
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) < 3 || strings.HasPrefix(line, "| what |") {
			continue
		}
		rows++
		command := cells[len(cells)-1]
		tests := named.FindAllStringSubmatch(command, -1)
		if len(tests) == 0 {
			t.Errorf("docs/bugs.md: no test is named in %s", command)
		}
		for _, test := range tests {
			name := test[1] + test[2]
			found := exec.CommandContext(t.Context(), "git", "-C", root, "grep", "-qE", "(func|def) "+name+`\b`, "--", "*_test.go", "*.py").Run()
			if _, err := os.Stat(filepath.Join(root, "test/conformance", name+".py")); found != nil && err != nil {
				t.Errorf("docs/bugs.md names the test %s, which is not there", name)
			}
		}
	}
	if rows < 10 {
		t.Errorf("found %d rows, want at least 10: is the pattern right?", rows)
	}
}
