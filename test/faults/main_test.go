// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the cacheserver that every test runs.
var binary string

// together is how many tests run at a time: most of them wait for processes.
const together = "5"

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "faults-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "cacheserver")
	args := []string{"build", "-o", binary}
	if raceEnabled {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "../../cmd/cacheserver")...) //nolint:noctx // TestMain has no context
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return 1, fmt.Errorf("build cacheserver: %w", err)
	}
	flag.Parse()                                                                              //nolint:forbidigo // the test binary's own flags
	if flag.Lookup("test.parallel").Value.String() == flag.Lookup("test.parallel").DefValue { //nolint:forbidigo // the test binary's own flags
		if err := flag.Set("test.parallel", together); err != nil { //nolint:forbidigo // the test binary's own flags
			return 1, err
		}
	}
	return m.Run(), nil
}
