// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package mutants

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

const root = "../../.."

// missable is how many mutants of the whole list may remain undetected.
const missable = 1

// TestMutants builds the test of the schedules with one deliberate bug after the other, and runs it until it fails. MUTANTS is the
// number of bugs to try, starting with MUTANTS_FIRST; SOAK_SCHEDULES is the maximum number of schedules for each.
func TestMutants(t *testing.T) {
	count, first := int(number(t, "MUTANTS", seedtest.Cases[uint64](0, 1))), int(number(t, "MUTANTS_FIRST", 1))
	count = min(count, len(list))
	t.Logf("MUTANTS_FIRST=%d MUTANTS=%d of %d", first, count, len(list))
	for _, m := range list {
		if _, err := m.apply(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	missed := 0
	for i := range count {
		m := list[(first+i)%len(list)]
		began := time.Now()
		how, caught, err := m.run(t)
		if err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		if !caught {
			missed++
		}
		t.Logf("%2d %s: %s (%.0f s)", (first+i)%len(list), m.name, how, time.Since(began).Seconds())
	}
	t.Logf("%d of %d mutants caught", count-missed, count)
	if missed > missable*count/len(list) {
		t.Errorf("%d of %d mutants were missed, at most %d of %d may be", missed, count, missable, len(list))
	}
}

// apply returns the file's text with the bug.
func (m mutant) apply() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(text, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("%s has %d times, want once:\n%s", m.file, n, m.old)
	}
	return bytes.Replace(text, []byte(m.old), []byte(m.new), 1), nil
}

var verdict = regexp.MustCompile(`schedule (\d+) of \d+ failed|panic: [^\n]*|\d+ schedules in`)

// build builds the test of a folder with the bug, and returns its path.
func (m mutant) build(t *testing.T, folder string) (program string, err error) {
	dir := t.TempDir()
	text, err := m.apply()
	if err != nil {
		return "", err
	}
	file, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: filepath.Join(dir, "mutant.go")}})
	if err != nil {
		return "", err
	}
	for name, data := range map[string][]byte{"mutant.go": text, "overlay.json": overlay} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return "", err
		}
	}
	program = filepath.Join(dir, "mutant.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, folder)
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as for all builds without the race detector
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, output)
	}
	return program, nil
}

// run reports whether a schedule fails with the bug, and how. It returns an error if the build fails.
func (m mutant) run(t *testing.T) (how string, caught bool, err error) {
	program, err := m.build(t, "./test/soak")
	if err != nil {
		return "", false, err
	}
	run := exec.CommandContext(t.Context(), program, "-test.run", "^TestSchedules$", "-test.v", "-test.timeout", "5m")
	run.Dir = filepath.Join(root, "test/soak")
	run.Env = append(os.Environ(), "SOAK_SCHEDULES="+strconv.FormatUint(number(t, "SOAK_SCHEDULES", 300), 10))
	output, failed := run.CombinedOutput()
	last := verdict.FindAllString(string(output), -1)
	if len(last) == 0 {
		return "", false, fmt.Errorf("run: %w\n%.2000s", failed, output)
	}
	if failed == nil {
		return "MISSED by " + strings.TrimSuffix(last[len(last)-1], " in"), false, nil
	}
	return "caught, " + last[len(last)-1], true, nil
}

// number parses a number from the environment.
func number(t *testing.T, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
