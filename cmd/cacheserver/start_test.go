// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// mostAtStart is what packages may allocate before main, in bytes. Each program of a cache and each --help pays for it:
// the definitions that third_party/substrait is there to leave out alone took 33 MB and 0.12 seconds.
const mostAtStart = 10 << 20

func TestStartIsLight(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	start := exec.CommandContext(t.Context(), program, "-test.run", "^$")
	start.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := start.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	type initialised struct {
		name  string
		bytes int
	}
	var all []initialised
	total := 0
	for _, m := range regexp.MustCompile(`(?m)^init (\S+) .* (\d+) bytes, \d+ allocs$`).FindAllStringSubmatch(string(out), -1) {
		bytes, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, initialised{m[1], bytes})
		total += bytes
	}
	if len(all) < 50 {
		t.Fatalf("%d packages tell what they allocate, there are hundreds:\n%s", len(all), out)
	}
	if total > mostAtStart {
		slices.SortFunc(all, func(a, b initialised) int { return cmp.Compare(b.bytes, a.bytes) })
		t.Errorf("packages allocate %d bytes before main, at most %d are wanted; the first of them: %v", total, mostAtStart, all[:5])
	}
}
