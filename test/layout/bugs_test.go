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
	found, err := exec.CommandContext(t.Context(), "git", "-C", root, "grep", "-hoE", `(func|def) (Test|Fuzz|test_)[A-Za-z0-9_]+`, "--", "*_test.go", "*.py").Output()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for line := range strings.Lines(string(found)) {
		tests[strings.Fields(line)[1]] = true
	}
	rows := 0
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) < 3 || strings.HasPrefix(line, "| what |") {
			continue
		}
		rows++
		command := cells[len(cells)-1]
		runs := named.FindAllStringSubmatch(command, -1)
		if len(runs) == 0 {
			t.Errorf("docs/bugs.md: no test is named in %s", command)
		}
		for _, run := range runs {
			name := run[1] + run[2]
			if _, err := os.Stat(filepath.Join(root, "test/conformance", name+".py")); !tests[name] && err != nil {
				t.Errorf("docs/bugs.md names the test %s, which is not there", name)
			}
		}
	}
	if rows < 10 {
		t.Errorf("found %d rows, want at least 10: is the pattern right?", rows)
	}
}
